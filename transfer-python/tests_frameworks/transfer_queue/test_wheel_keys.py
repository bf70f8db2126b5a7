"""TransferQueue's own tests of its key-value interface, blocking and with asyncio."""

from wheel_tests import theirs

globals().update(theirs("test_kv_interface_e2e"))
