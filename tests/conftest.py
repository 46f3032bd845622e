from hypothesis import settings

# A loaded machine is no reason to fail: property tests have no deadline of their own.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
