from support.containers import mode as mode
from support.containers import recorder as recorder
from support.containers import start as start
