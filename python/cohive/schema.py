"""SchemaValidator: records that match a model of pydantic (1, or 2's `pydantic.v1`). Needs pydantic."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Type

try:
    import pydantic.v1 as pydantic  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    try:
        import pydantic  # type: ignore[no-redef,import-not-found,unused-ignore]
    except ImportError:
        raise ImportError("cohive.SchemaValidator needs pydantic: pip install pydantic") from None

from . import _msgpack
from .node import DHTID
from .validation import IS_REGULAR_VALUE, DHTRecord, RecordValidatorBase, RSASignatureValidator


class SchemaValidator(RecordValidatorBase):
    """Holds records of some keys to the types of a model's fields. Two of them merge: a record must match either.

    :param schema: a subclass of pydantic.BaseModel, which is changed: fields become optional, others forbidden. Numbers
        must have strict types (StrictInt, confloat(strict=True)), or 3.0 passes for 3
    :param allow_extra_keys: accept records of keys that no schema has
    :param prefix: key of a field is "<prefix>_<field>"
    """

    def __init__(self, schema: Type[Any], allow_extra_keys: bool = True, prefix: Optional[str] = None) -> None:
        self._patch_schema(schema)
        self._schemas: List[Type[Any]] = [schema]
        self._key_id_to_field_name: Dict[bytes, str] = {}
        for field in schema.__fields__.values():
            key = f"{prefix}_{field.name}" if prefix is not None else field.name
            self._key_id_to_field_name[DHTID.generate(source=key).to_bytes()] = field.name
        self._allow_extra_keys = allow_extra_keys

    @staticmethod
    def _patch_schema(schema: Type[Any]) -> None:
        if not hasattr(schema, "__fields__") or not hasattr(schema, "Config"):
            raise TypeError("a schema is a subclass of pydantic.v1.BaseModel")
        for field in schema.__fields__.values():
            field.required = False
        schema.Config.extra = pydantic.Extra.forbid

    def validate(self, record: DHTRecord) -> bool:
        """Whether the value, as it is, is one that the field takes without a conversion."""
        name = self._key_id_to_field_name.get(record.key)
        if name is None:
            return self._allow_extra_keys
        try:
            value = _msgpack.loads(record.value)
            if record.subkey != IS_REGULAR_VALUE:
                value = {_msgpack.loads(record.subkey): value}
            elif isinstance(value, dict):  # it would be taken for a dictionary of subkeys
                return False
        except (ValueError, TypeError):
            return False
        return any(self._matches(schema, name, value) for schema in list(self._schemas))

    @staticmethod
    def _matches(schema: Type[Any], name: str, value: Any) -> bool:
        try:
            parsed = schema.parse_obj({name: value})
        except pydantic.ValidationError:
            return False
        return bool(parsed.dict(by_alias=True).get(name) == value)

    def merge_with(self, other: RecordValidatorBase) -> bool:
        if not isinstance(other, SchemaValidator):
            return False
        self._schemas.extend(other._schemas)
        self._key_id_to_field_name.update(other._key_id_to_field_name)
        self._allow_extra_keys = self._allow_extra_keys or other._allow_extra_keys
        return True

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        for schema in self._schemas:  # in another process its model is as it was written
            self._patch_schema(schema)


def conbytes(*, regex: Optional[bytes] = None, **kwargs: Any) -> Type[Any]:
    """pydantic.conbytes(), with a regular expression."""
    compiled = re.compile(regex) if regex is not None else None

    class ConstrainedBytesWithRegex(pydantic.conbytes(**kwargs)):  # type: ignore[misc]
        @classmethod
        def __get_validators__(cls) -> Any:
            yield from super().__get_validators__()
            yield cls.match_regex

        @classmethod
        def match_regex(cls, value: bytes) -> bytes:
            if compiled is not None and compiled.match(value) is None:
                raise ValueError(f"Value `{value!r}` doesn't match regex `{regex!r}`")
            return value

    return ConstrainedBytesWithRegex


#: bytes that name an owner, so that RSASignatureValidator asks for his signature
BytesWithPublicKey = conbytes(regex=b".*" + RSASignatureValidator.PUBLIC_KEY_REGEX + b".*")
