"""Numba's ``njit`` with a disk cache that knows everything a compiled function is made of.

Numba's own cache watches the file of a function alone: after an edit or an upgrade of what the function calls
in another file, old machine code would still run. Here compiled code is one file whose name holds a hash of
all that went into it: the bytecode of the function and of all that it calls, the constants that they read,
the text of their files (for overloads, which nobody names), the types of the arguments, the processor, and
the versions of Numba and Python. Files appear whole and are never changed, so processes do not disturb one
another. Importing this module does not import Numba.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from georoutenet.errors import InputError, warn
from georoutenet.io.atomic import atomic_write
from georoutenet.io.cache import cache_folder
from georoutenet.unbroken import unbroken

PLAIN: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False, "level": 1}
"""Options of functions that only read and write arrays: no runtime that could make or count them. Level 1
compiles in seven eighths of the time of level 3, and the search is as fast (100 and 1,000 cities)."""
INNER: dict[str, Any] = {**PLAIN, "inner": True}
"""Of such functions that only compiled code calls."""
UNUSED = 60 * 24 * 3600
"""Seconds after which compiled code that nobody has read is removed."""


def njit(
    function: Callable[..., Any] | None = None,
    *,
    cache: bool = True,
    inner: bool = False,
    level: int | None = None,
    **options: Any,
) -> Any:
    """``numba.njit``, bare or with its options (signatures apart), cached on disk unless ``cache=False``.

    ``inner`` functions are called by compiled code alone; making them known to Python took a tenth of the
    time of compiling. ``level`` is LLVM's, 0 to 3 (default: Numba's, 3).
    """
    if function is None:
        return functools.partial(njit, cache=cache, inner=inner, level=level, **options)
    import numba

    wrappers: Any = {"no_cfunc_wrapper": True, "no_cpython_wrapper": inner}  # nobody calls them from C
    compiled: Any = numba.njit(**wrappers, **options)(function)
    if hasattr(compiled, "_cache"):  # NUMBA_DISABLE_JIT leaves plain Python
        if cache:
            compiled._cache = DiskCache(compiled)
        _compile_at(level, compiled, inner)
        if inner:
            _keep_from_python(compiled)
        else:
            compiled._compile_for_args = functools.partial(_compile, compiled._compile_for_args)
    return compiled


def _compile(compile_for: Callable[..., Any], *arguments: Any) -> Any:
    """Compile a function for its first call with such arguments, or load what was compiled, unbroken."""
    from numba.core.compiler_lock import global_compiler_lock

    if global_compiler_lock.is_locked():  # by this very thread: another would wait for it
        return compile_for(*arguments)
    return unbroken(lambda: compile_for(*arguments))


def _keep_from_python(compiled: Any) -> None:
    """Have a call from Python refused, which would crash: there is no code for it."""

    def refuse(*_: Any, **__: Any) -> Any:
        name = compiled.py_func.__qualname__
        raise TypeError(
            f"{name} is called by compiled code alone; njit(lambda *given: {name}(*given)) can be called here"
        )

    compiled._compile_for_args = refuse
    compiled._insert = lambda *_: None  # nothing to find for calls from Python


def _compile_at(level: int | None, compiled: Any, inner: bool) -> None:
    """Have a function optimized at this level, or at the lower one that NUMBA_OPT names.

    Inner functions are left to the optimization of those that call them, whose modules hold all that they
    call: that takes a sixth of the time of compiling away and gives code as fast.
    """
    from numba import config

    settings, compiler = vars(config), compiled._compiler
    compile_usually = compiler.compile
    _leave_inner_alone()

    def compile_at_level(*arguments: Any) -> Any:  # under Numba's lock: one thread at a time
        usual, outside = settings["OPT"], _compiling["inner"]
        settings["OPT"] = usual if level is None else type(usual)(min(level, usual))
        _compiling["inner"] = inner
        try:
            return compile_usually(*arguments)
        finally:
            settings["OPT"], _compiling["inner"] = usual, outside

    compiler.compile = compile_at_level


_compiling = {"inner": False}
"""Whether the function that Numba is at is called by compiled code alone."""


@functools.cache
def _leave_inner_alone() -> None:
    """Have Numba leave modules of inner functions as they are, and treat all others as ever."""
    from numba.core import codegen

    modules: Any = codegen.CPUCodeLibrary
    optimize_usually = getattr(modules, "_optimize_final_module", None)
    if optimize_usually is None:  # another Numba: slower, not wrong
        return

    def optimize(library: Any) -> None:
        if not _compiling["inner"]:
            optimize_usually(library)

    modules._optimize_final_module = optimize


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` where Ctrl-C came while compiled code took or made an array.

    CPython reports that as a ``SystemError`` caused by the interrupt, or by another one that is.
    """
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


def compiled_folder() -> Path:
    """Where compiled code is kept: below ``$NUMBA_CACHE_DIR`` if set, else in the package's own cache."""
    from numba import config

    given = vars(config)["CACHE_DIR"]
    return Path(given) / "georoutenet" if given else cache_folder() / "numba"


class DiskCache:
    """What Numba asks of the cache of one function."""

    writable = True
    """For all functions: False after the first file that could not be written."""

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._stamp = compiled, ""
        self._name = re.sub(r"[^\w.]", "", f"{compiled.py_func.__module__}.{compiled.py_func.__qualname__}")

    @property
    def cache_path(self) -> str | None:
        with suppress(InputError):  # no home folder
            return str(compiled_folder())
        return None

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled code for a signature, or None."""
        from numba.core.compiler import CompileResult

        context.refresh()
        try:
            path = self._path(signature, context)
            parts = pickle.loads(path.read_bytes())
            with suppress(OSError):
                os.utime(path)
            return CompileResult._rebuild(context, *parts)
        except Exception:  # not there, or damaged: it is compiled and written again
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store compiled code; one warning where that does not work."""
        from numba.core.serialize import dumps

        if not DiskCache.writable or result.library.has_dynamic_globals:
            return
        try:
            with atomic_write(self._path(signature, result.target_context), "wb") as file:
                file.write(dumps(result._reduce()))
            self._remove(UNUSED)
        except Exception as error:
            DiskCache.writable = False
            message = f"compiled code is not kept, and every process compiles anew ({error}); "
            message += "set GEOROUTENET_CACHE to a folder that can be written"
            warn(message)

    def flush(self) -> None:
        """Remove what is stored: Numba is asked to compile the function again."""
        self._remove(0)

    def _remove(self, age: float) -> None:
        for path in compiled_folder().glob(f"{self._name}-*.nbc"):
            with suppress(OSError):  # another process may have removed it
                if path.stat().st_mtime <= time.time() - age:
                    path.unlink()

    def _path(self, signature: Any, context: Any) -> Path:
        import numba

        self._stamp = self._stamp or stamp(self._compiled)  # not before its module has been read to the end
        fields = [getattr(kind, "fields", None) for kind in getattr(signature, "args", signature)]
        versions = numba.__version__, sys.implementation.cache_tag, context.codegen().magic_tuple()
        key = hashlib.sha256(repr((self._stamp, str(signature), fields, versions)).encode()).hexdigest()
        return compiled_folder() / f"{self._name}-{key[:32]}.nbc"


def stamp(compiled: Any) -> str:
    """A hash of a compiled function and of all that it reaches; the same in every process with this code."""
    parts: list[str] = []
    _describe(compiled, {}, parts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def _text(path: str) -> bytes:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:  # without its source, a function is known by its bytecode alone
        return b""


def _describe(value: Any, seen: dict[int, Any], parts: list[str]) -> None:
    """Append what a value is; functions are followed to the functions and constants that they name."""
    function = getattr(value, "py_func", getattr(value, "_defn", value))  # of compiled functions, intrinsics
    if isinstance(value, ModuleType | type):
        parts.append(f"{value.__name__} {getattr(value, '_fields', '')}")
    elif isinstance(function, FunctionType):
        code = function.__code__
        parts.append(f"{function.__module__}.{function.__qualname__}")
        foreign = function.__module__.partition(".")[0] in ("numba", "numpy", "llvmlite")
        if foreign or id(function) in seen:
            return
        seen[id(function)] = function
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        defaults = function.__defaults__, function.__kwdefaults__
        used = _named(code, function.__globals__)
        about = [_text(code.co_filename), code, cells, defaults, getattr(value, "targetoptions", 0), used]
        _describe(about, seen, parts)
    elif isinstance(value, CodeType):
        parts += [value.co_code.hex(), str(value.co_names), str(value.co_varnames), str(value.co_freevars)]
        _describe(value.co_consts, seen, parts)
    elif isinstance(value, dict):
        _describe([(key, value[key]) for key in sorted(value, key=repr)], seen, parts)
    elif isinstance(value, tuple | list | set | frozenset):
        parts.append(f"{type(value).__name__} {len(value)}")
        for one in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            _describe(one, seen, parts)
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        parts.append(f"{value.dtype} {value.shape} {value.tobytes().hex()}")
    else:
        parts.append(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)))


def _named(code: CodeType, scope: dict[str, Any]) -> dict[str, Any]:
    """What the names in a function stand for, attributes of modules among them."""
    names, codes = set[str](), [code]
    for one in codes:  # functions inside it are appended as they are met
        names.update(one.co_names)
        codes += [part for part in one.co_consts if isinstance(part, CodeType)]
    found = {name: scope[name] for name in names if name in scope}
    for module in [one for one in found.values() if isinstance(one, ModuleType)]:
        attributes = {f"{module.__name__}.{name}": vars(module).get(name) for name in names}
        found |= {name: one for name, one in attributes.items() if hasattr(one, "py_func")}
        found |= {name: one for name, one in attributes.items() if isinstance(one, int | float | tuple)}
    return found
