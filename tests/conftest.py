from hypothesis import settings

import georoutenet  # noqa: F401  (before torch, so that its threads do not spin: the tests share the cores)

# A loaded machine is no reason to fail: property tests have no deadline of their own.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
