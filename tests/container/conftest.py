from support.supervised import mode as mode
from support.supervised import recorder as recorder
from support.supervised import start as start
from support.supervised import tty as tty
