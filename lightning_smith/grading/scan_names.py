"""Names by which the scan of a patch (`scan.py`) tells what reaches beyond the code under test."""

from __future__ import annotations

import re
import sys


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARMLESS_MODULES = _words(
    """
    __future__ abc argparse array base64 binascii bisect calendar cmath collections colorsys configparser
    contextlib copy csv dataclasses datetime decimal difflib email encodings enum errno fnmatch fractions
    functools getopt gettext graphlib hashlib heapq hmac html http ipaddress itertools json keyword locale
    logging math mimetypes numbers operator optparse platform posixpath pprint queue quopri random re
    reprlib secrets select shlex sched statistics stringprep struct textwrap time token
    tomllib typing typing_extensions unicodedata urllib uuid warnings xml zlib zoneinfo ntpath stat
    """
)
"""Modules that reach neither the runner nor the interpreter."""

_OF_MODULES = {
    "sys": """maxsize version_info version byteorder platform maxunicode float_info int_info hash_info getsizeof intern
        getrecursionlimit getdefaultencoding getfilesystemencoding implementation exc_info flags""",
    "os": """path fspath sep altsep extsep linesep pathsep curdir pardir devnull name getcwd PathLike fsencode
        fsdecode strerror""",
    "string": """ascii_letters ascii_lowercase ascii_uppercase capwords digits hexdigits octdigits punctuation printable
        whitespace""",
    "io": "StringIO BytesIO TextIOBase IOBase RawIOBase BufferedIOBase SEEK_SET SEEK_CUR SEEK_END UnsupportedOperation",
    "pathlib": "PurePath PurePosixPath PureWindowsPath",
    "codecs": """BOM_UTF8 BOM_UTF16 BOM_UTF16_LE BOM_UTF16_BE BOM_UTF32 BOM_UTF32_LE BOM_UTF32_BE encode decode lookup
        getincrementaldecoder getincrementalencoder getencoder getdecoder getreader getwriter CodecInfo""",
    "inspect": """signature Signature Parameter isclass isfunction ismethod isbuiltin isroutine isgenerator
        isgeneratorfunction iscoroutine iscoroutinefunction isabstract isawaitable
        isasyncgenfunction getdoc cleandoc getfullargspec unwrap ismodule isdatadescriptor getmro""",
    "types": """MappingProxyType SimpleNamespace GeneratorType ModuleType MethodType BuiltinFunctionType LambdaType
        FunctionType GenericAlias UnionType NoneType EllipsisType NotImplementedType DynamicClassAttribute coroutine""",
    "threading": "Lock RLock local Event Condition Semaphore BoundedSemaphore",
    "weakref": "ref proxy WeakKeyDictionary WeakValueDictionary WeakSet WeakMethod ref ReferenceType",
    "ast": "literal_eval",
    "asyncio": """CancelledError TimeoutError iscoroutinefunction iscoroutine Future Event Lock Queue sleep wait_for
        gather""",
}
HARMLESS = {module: frozenset(names.split()) for module, names in _OF_MODULES.items()}
"""Of modules that reach further as well: what does not."""

RISKY_BUILTINS = _words(
    """
    exec eval compile __import__ globals locals vars breakpoint exit quit input SystemExit
    KeyboardInterrupt BaseException GeneratorExit AssertionError __builtins__ __loader__ __spec__
    __debug__ memoryview delattr
    """
)
SOFT_BUILTINS = _words("AssertionError BaseException GeneratorExit memoryview vars input")
"""Of these, those that a file which uses them anyway may use once more."""

FILE_BUILTINS = frozenset({"open", "__file__"})
REACHING = _words(
    "sys _sys os _os gc inspect builtins ctypes importlib subprocess threading atexit traceback linecache marshal"
)
"""Modules that others hold under these names, and hand on."""

REFLECTION = _words("getattr setattr hasattr attrgetter methodcaller")
"""Functions that take the name of an attribute."""

HARMLESS_DUNDERS = _words(
    """
    __name__ __qualname__ __module__ __class__ __init__ __new__ __len__ __iter__ __next__ __reversed__
    __repr__ __str__ __format__ __bytes__ __int__ __float__ __index__ __complex__ __enter__ __aenter__
    __call__ __getitem__ __setitem__ __delitem__ __contains__ __missing__ __eq__ __ne__ __lt__ __le__
    __gt__ __ge__ __hash__ __bool__ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__
    __imul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__
    __divmod__ __neg__ __pos__ __abs__ __invert__ __and__ __rand__ __iand__ __or__ __ror__ __ior__ __xor__
    __rxor__ __ixor__ __lshift__ __rshift__ __matmul__ __round__ __trunc__ __floor__ __ceil__ __copy__
    __deepcopy__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __sizeof__ __dir__
    __slots__ __weakref__ __wrapped__ __annotations__ __origin__ __args__ __parameters__ __all__
    __version__ __author__ __cause__ __context__ __suppress_context__ __post_init__ __main__ __fields__
    __attrs_attrs__ __html__ __future__ __path__ __await__ __aiter__ __anext__ __get__ __set__ __delete__
    __set_name__ __init_subclass__ __class_getitem__ __fspath__ __length_hint__ __isabstractmethod__
    __doc__ __dict__ __getattr__ __exit__ __aexit__
    """
)
"""Attributes in double underscores that a repair may name; defining some of them is looked at by `DEFINED`."""

RISKY_ATTRIBUTES = _words(
    """
    f_back f_locals f_globals f_builtins f_code f_lineno f_trace f_lasti tb_frame tb_next tb_lasti
    tb_lineno gi_frame gi_code cr_frame cr_code ag_frame ag_code co_code co_consts co_names co_varnames
    co_filename co_name func_globals func_code meta_path path_hooks settrace setprofile _getframe
    _current_frames addaudithook excepthook unraisablehook displayhook currentframe getouterframes
    getinnerframes getsource getsourcelines getsourcefile get_objects get_referrers get_referents
    makereport longrepr longreprtext pluginmanager hookimpl hookwrapper pytest_configure _exit __stdout__
    __stderr__ monitoring call_tracing gettrace getprofile _clear_type_cache _debugmallocstats stack
    reraise cached_setup add_finalizer addfinalizer importorskip
    """
)
"""Attributes by which code reaches frames, the interpreter or the runner."""

STRING_READERS = _words(
    "get_type_hints ForwardRef _evaluate evaluate_forward_ref get_field dictConfig fileConfig ExitStack"
)
"""By which a string can name an object, and a context can hide what is raised in it."""

DEFINED = _words(
    """
    __getattribute__ __instancecheck__ __subclasscheck__ __subclasshook__ __del__ __exit__ __aexit__
    __prepare__
    """
)
COMPARISONS = _words(
    """
    __eq__ __ne__ __contains__ __lt__ __le__ __gt__ __ge__ __cmp__
    """
)
OPERATORS = _words(
    """
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__
    __rmod__ __pow__ __rpow__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__
    """
)
DUNDER = re.compile(r"__[a-z]\w*__")
RISKY_TEXT = re.compile(
    r"""(?x) _pytest | \bpytest | \bconftest\b | \bunittest\b | sys\.modules | /proc/ | PYTEST_ | _getframe | \.pyc\b
    | \b(PASSED|FAILED|XPASS|XFAIL)\b | \d+\ (passed|failed) | ^\s*(import|from)\ \w+
    | \b(exec|eval|__import__)\( | \bassert\b
    | \btest_\w+ | \btests?/ | \bf_(back|locals|globals)\b | \b(gc|ctypes|builtins|inspect|importlib)\."""
)
TEXT_SUFFIXES = (".md", ".rst", ".txt", ".adoc")
STANDARD = frozenset(sys.stdlib_module_names)
RUNNERS = frozenset({"pytest", "_pytest", "pluggy"})
