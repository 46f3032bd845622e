"""The errors a user can cause. The command line prints them without a traceback."""


class GeoRouteNetError(Exception):
    """Base of every error that is about the input or the environment, not a bug."""


class InputError(GeoRouteNetError, ValueError):
    """A value, file or option that cannot be used; the message says what was given and what is allowed."""


class MissingDependencyError(GeoRouteNetError, ImportError):
    """An optional package is not installed; the message holds the install line."""


class GeoRouteNetWarning(UserWarning):
    """Something worth knowing that does not stop the work."""
