"""TransferQueue's own tests of the life of samples, with its client, controller and sampler."""

from wheel_tests import theirs

globals().update(theirs("test_e2e_lifecycle_consistency"))
