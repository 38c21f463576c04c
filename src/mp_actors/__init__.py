"""Move an object to a child process and go on calling its methods.

Every call ends with a result or an exception: the child's end fails all pending calls at once, cancelling a call
cancels it in the child, and the child ends when its parent does.
"""

from mp_actors.proxy import ActorProxy, close_proxy, move_to_child_process
from mp_actors.thread import ThreadActor, move_to_thread

__all__ = ["ActorProxy", "ThreadActor", "close_proxy", "move_to_child_process", "move_to_thread"]
