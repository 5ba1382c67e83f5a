"""RSA keys that own records of the DHT, as Python hivemind uses them: PSS with SHA-256, signatures in base64."""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from typing import Any, Optional

from . import _msgpack, _native
from ._native import Handle, check, lib


class PublicKey(ABC):
    """Checks signatures."""

    @abstractmethod
    def verify(self, data: bytes, signature: bytes) -> bool: ...

    @abstractmethod
    def to_bytes(self) -> bytes: ...

    @classmethod
    @abstractmethod
    def from_bytes(cls, key: bytes) -> "PublicKey": ...


class PrivateKey(ABC):
    """Signs."""

    @abstractmethod
    def sign(self, data: bytes) -> bytes: ...

    @abstractmethod
    def get_public_key(self) -> PublicKey: ...


class RSAPublicKey(PublicKey):
    """A key as OpenSSH writes it."""

    def __init__(self, openssh: bytes) -> None:
        if not openssh.startswith(b"ssh-rsa ") or b"\0" in openssh:
            raise ValueError('an RSA public key begins with "ssh-rsa "')
        self._openssh = openssh

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether a base64 signature of the data is this key's."""
        verdict = lib.cohive_rsa_verify(
            self._openssh, _native.data(data), len(data), _native.data(signature), len(signature)
        )
        if verdict != _native.INVALID_RECORD:
            check(verdict)
        return bool(verdict == _native.OK)

    def to_bytes(self) -> bytes:
        """b"ssh-rsa AAAA..." """
        return self._openssh

    @classmethod
    def from_bytes(cls, key: bytes) -> "RSAPublicKey":
        return cls(key)


class RSAPrivateKey(PrivateKey):
    """A key of 2,048 bits, which is made in some tens of milliseconds. It can be pickled.

    :param der: a key that there is, as to_bytes() gives it (PKCS#1 DER)
    """

    _process_wide_key: Optional["RSAPrivateKey"] = None
    _process_wide_key_lock = threading.RLock()

    def __init__(self, der: Optional[bytes] = None) -> None:
        self._handle = Handle()
        given = (None, 0) if der is None else (_native.data(der), len(der))
        check(lib.cohive_validator_rsa(*given, ctypes.byref(self._handle)))
        description = _native.Bytes()
        check(lib.cohive_validator_describe(self._handle, ctypes.byref(description)))
        facts = _msgpack.loads(_native.taken(description))
        self._der: bytes = facts["private_key"]
        self._public = RSAPublicKey(facts["public_key"].encode())
        self._marker: bytes = facts["marker"]

    @classmethod
    def process_wide(cls) -> "RSAPrivateKey":
        """The key of this process."""
        with cls._process_wide_key_lock:
            if cls._process_wide_key is None:
                cls._process_wide_key = cls()
            return cls._process_wide_key

    def sign(self, data: bytes) -> bytes:
        """The base64 signature of the data."""
        signature = _native.Bytes()
        check(lib.cohive_rsa_sign(self._handle, _native.data(data), len(data), ctypes.byref(signature)))
        return _native.taken(signature)

    def get_public_key(self) -> RSAPublicKey:
        return self._public

    def to_bytes(self) -> bytes:
        """PKCS#1 DER. Keep it secret."""
        return self._der

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), Handle()
        if handle:
            lib.cohive_validator_free(handle)

    def __reduce__(self) -> Any:
        return RSAPrivateKey, (self._der,)
