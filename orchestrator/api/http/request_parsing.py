"""Parsing and validation of a request's path, query and body. Raises ApiError for wrong input."""

import asyncio
import functools
import math
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import inspect

from muster.http.views import FieldProblem
from muster.protocol.ids import JobId
from muster.protocol.timestamp import moment
from muster.spec.errors import InvalidValueError, printable
from muster.spec.suggestions import nearest
from orchestrator.api.http.problems import ApiError
from orchestrator.api.http.route import QUERY, ROUTE

_T = TypeVar("_T")
_Q = TypeVar("_Q", bound=msgspec.Struct)
BODY_S: Final = 30.0
_SHOWN_CHARS: Final = 80
_JOB_ID_DIGITS_MAX: Final = 18
_UNKNOWN_NAMED_MAX: Final = 16
_TRUE: Final = ("1", "true", "yes", "")
_FALSE: Final = ("0", "false", "no")


def job_id(request: web.Request) -> JobId:
    """Return the job id in the path. Raises ApiError (404)."""
    text = request.match_info["id"]
    if not _is_number(text, _JOB_ID_DIGITS_MAX) or text.startswith("0"):
        raise no_such_job(shown(text))
    return JobId(int(text))


def no_such_job(name: object) -> ApiError:
    return ApiError(
        404, "unknown_job", f"there is no job {name}", "list the jobs: muster ps -a (GET /v1/jobs)"
    )


def no_such_token(name: str) -> ApiError:
    hint = "list the tokens: muster token list"
    return ApiError(404, "unknown_token", f"there is no token {shown(name)}", hint)


def read_moment(name: str, text: str, now: float) -> float:
    """Return the UTC seconds of a time in RFC 3339, or of a span (`10m`) before `now`. Raises
    ApiError.
    """
    try:
        # An unquoted plus sign has become a space.
        return moment(text.replace(" ", "+"), now)
    except InvalidValueError as error:
        raise wrong_parameter(name, text, error.message, error.hint) from error


def read_query(request: web.Request, kind: type[_Q]) -> _Q:
    """Return the parsed parameters of a request. Their type is declared by the route."""
    query = request[QUERY]
    assert isinstance(query, kind), f"{request.path} says {type(query)} and reads {kind}"
    return query


def parse_query(request: web.Request, kind: type[_Q]) -> _Q:
    """Return the parameters of a request as a struct of `orchestrator.api.http.query_params`.

    An unknown parameter is refused, not ignored. Raises ApiError (400) that names the parameter.
    """
    fields = _fields(kind)
    values: dict[str, object] = {}
    for name, text in request.query.items():
        if name not in fields:
            names = f"there are {', '.join(sorted(fields))}" if fields else "there are none"
            raise wrong_parameter(name, text, "is not a parameter here", names)
        if name in values:
            raise wrong_parameter(name, text, "is given twice", "give it once")
        values[name] = _value(name, text, fields[name])
    return kind(**values)


@functools.cache
def _fields(kind: type) -> dict[str, inspect.Type]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {field.encode_name: _plain(field.type) for field in found.fields}


def _plain(kind: inspect.Type) -> inspect.Type:
    """Return the type without descriptions and None, which do not change how a text is parsed."""
    match kind:
        case inspect.Metadata(inner):
            return _plain(inner)
        case inspect.UnionType(types):
            given = tuple(each for each in types if not isinstance(each, inspect.NoneType))
            return _plain(given[0]) if len(given) == 1 else inspect.UnionType(given)
        case _:
            return kind


def _value(name: str, text: str, kind: inspect.Type) -> object:
    match kind:
        case inspect.UnionType(types):
            (words,) = (each for each in types if isinstance(each, inspect.LiteralType))
            (other,) = (each for each in types if each is not words)
            return text if text in words.values else _value(name, text, _plain(other))
        case inspect.BoolType():
            if text.lower() not in _TRUE + _FALSE:
                raise wrong_parameter(name, text, "is neither true nor false")
            return text.lower() in _TRUE
        case inspect.IntType(ge=least, le=most):
            assert least is not None, f"{name} has no lower bound"
            assert most is not None, f"{name} has no upper bound"
            if not _is_number(text, 18) or not least <= int(text) <= most:
                raise wrong_parameter(name, text, f"is not a whole number from {least} to {most}")
            return int(text)
        case inspect.FloatType(ge=least, le=most):
            return _float(name, text, least, most)
        case inspect.EnumType(cls):
            if text not in (each.value for each in cls):
                possible = ", ".join(sorted(each.value for each in cls))
                raise wrong_parameter(name, text, "is not possible", f"possible: {possible}")
            return cls(text)
        case inspect.VarTupleType(item):
            return tuple(_value(name, word, _plain(item)) for word in text.split(",") if word)
        case inspect.StrType(max_length=most):
            if most is not None and len(text) > most:
                raise wrong_parameter(name, text, f"is longer than {most} characters")
            return text
        case _:
            raise AssertionError(f"{name}: no parameter is read as {kind}")


def _float(name: str, text: str, least: float | None, most: float | None) -> float:
    assert least is not None, f"{name} has no lower bound"
    assert most is not None, f"{name} has no upper bound"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # NaN is in no range.
    if not least <= value <= most:
        raise wrong_parameter(name, text, f"is not a number from {least:g} to {most:g}")
    return value


async def read_body(request: web.Request) -> bytes:
    """Return the whole body. Raises ApiError (408), and aiohttp's 413."""
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise ApiError(
            408,
            "request_timeout",
            f"the body was not complete after {BODY_S:g} s",
            "send it in one piece",
            headers={"Connection": "close"},
        ) from None


async def struct_body(request: web.Request, kind: type[_T]) -> _T:
    """Parse a JSON body as `kind`; an empty body is an empty object. Raises ApiError (400, 408; 422
    names every unknown field).
    """
    route = request[ROUTE]
    # A handler that asks for a mapping parses it itself.
    said = route.body is kind or not hasattr(kind, "__struct_fields__")
    assert said, f"{request.path} declares {route.body} and reads {kind}"
    raw = await read_body(request)
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError):
            _refuse_unknown(raw, getattr(kind, "__struct_encode_fields__", None))
        raise ApiError(400, "bad_body", f"the body cannot be used: {error}") from error


def _refuse_unknown(raw: bytes, known: tuple[str, ...] | None) -> None:
    """Raise ApiError (422) that names every field of a body outside `known`."""
    try:
        body = msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if known is None:
        return
    unknown = [name for name in body if name not in known][:_UNKNOWN_NAMED_MAX]
    problems = [
        FieldProblem(printable(name), "", "is not a field here", _meant(name, known))
        for name in unknown
    ]
    if problems:
        detail = f"not fields here: {', '.join(each.field for each in problems)}"
        raise ApiError(422, "bad_field", detail, problems[0].hint, problems=problems)


def _meant(name: str, known: tuple[str, ...]) -> str:
    meant = nearest(name, known)
    return f"did you mean `{meant}`?" if meant else f"there are {', '.join(sorted(known))}"


def shown(text: str) -> str:
    """Return `text`, shortened and without control characters."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


def _is_number(text: str, digits_max: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= digits_max


def wrong_parameter(name: str, value: str, message: str, hint: str = "") -> ApiError:
    problem = FieldProblem(printable(name, _SHOWN_CHARS), shown(value), message, hint)
    detail = f"the query parameter {shown(name)} = {shown(value)} {message}"
    return ApiError(400, "bad_query", detail, hint, problems=[problem])
