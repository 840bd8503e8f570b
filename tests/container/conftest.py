from supervised import mode as mode
from supervised import recorder as recorder
from supervised import start as start
from supervised import tty as tty
