"""Python hivemind nodes in a swarm with members, by a secret and by a list; a stranger gets nothing of either kind."""

import base64
import hashlib
import hmac
import json
import subprocess
import time

import pytest

hivemind = pytest.importorskip("hivemind")

from cryptography.exceptions import InvalidSignature  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import padding  # noqa: E402
from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.p2p import P2P, PeerID  # noqa: E402
from hivemind.proto import crypto_pb2  # noqa: E402
from hivemind.proto.auth_pb2 import AccessToken  # noqa: E402
from hivemind.utils import get_dht_time  # noqa: E402
from hivemind.utils.auth import TokenAuthorizerBase  # noqa: E402
from hivemind.utils.crypto import RSAPrivateKey  # noqa: E402

SECRET, OTHER_SECRET = "correct horse battery staple", "another horse with another battery"
LISTEN = "/ip4/127.0.0.1/tcp/0"


class Member(TokenAuthorizerBase):
    """Shows and checks the tokens of docs/wire/extensions.md, section 9; proofs are the subclass's."""

    def __init__(self, peer_id):
        super().__init__(RSAPrivateKey())
        self.peer_id = peer_id

    @staticmethod
    def text_of(token):
        parts = (b"cohive member", token.username.encode(), token.public_key, token.expiration_time.encode())
        return b"\n".join(parts)

    async def get_token(self):
        token = AccessToken(username=self.peer_id.to_base58(), public_key=self.local_public_key.to_bytes(),
                            expiration_time=str(int(time.time()) + 3600))
        token.signature = self.proof(self.text_of(token))
        return token

    def is_token_valid(self, access_token):
        in_time = -120 <= int(access_token.expiration_time) - time.time() <= 3720
        return in_time and self.proves(access_token.username, self.text_of(access_token), access_token.signature)

    def does_token_need_refreshing(self, access_token):
        return int(access_token.expiration_time) - time.time() < 1800


class BySecret(Member):
    def __init__(self, peer_id, secret):
        super().__init__(peer_id)
        self._key = hashlib.pbkdf2_hmac("sha256", secret.encode(), b"cohive members", 200_000, 32)

    def proof(self, text):
        return base64.b64encode(hmac.digest(self._key, text, "sha256"))

    def proves(self, username, text, proof):
        return hmac.compare_digest(proof, self.proof(text))


class ByList(Member):
    def __init__(self, identity, listed):
        super().__init__(PeerID.from_identity(identity))
        self._identity = serialization.load_der_private_key(crypto_pb2.PrivateKey.FromString(identity).data, password=None)
        self.listed = listed

    def proof(self, text):
        der = self._identity.public_key().public_bytes(serialization.Encoding.DER,
                                                       serialization.PublicFormat.SubjectPublicKeyInfo)
        key = crypto_pb2.PublicKey(key_type=crypto_pb2.RSA, data=der).SerializeToString()
        signature = self._identity.sign(text, padding.PKCS1v15(), hashes.SHA256())
        return base64.b64encode(key) + b"." + base64.b64encode(signature)

    def proves(self, username, text, proof):
        key, signature = map(base64.b64decode, proof.split(b"."))
        if username not in self.listed or PeerID(b"\x12\x20" + hashlib.sha256(key).digest()).to_base58() != username:
            return False
        try:
            public = serialization.load_der_public_key(crypto_pb2.PublicKey.FromString(key).data)
            public.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        except (InvalidSignature, ValueError):
            return False
        return True


def written(path, text):
    path.write_text(text)
    path.chmod(0o400)
    return path


def new_identity(path):
    """An identity as hivemind makes it, in a file: its bytes and its peer id."""
    P2P.generate_identity(str(path))
    return path.read_bytes(), PeerID.from_identity(path.read_bytes()).to_base58()


@pytest.fixture
def bootstrap(program, tmp_path):
    """bootstrap(OPTIONS): a cohive node of a swarm with members; its addresses."""
    started = []

    def start(*options):
        process = subprocess.Popen([program("cohive-bootstrap"), "--json", "--host-maddrs", LISTEN, *options],
                                   stdout=subprocess.PIPE, text=True)
        started.append(process)
        return json.loads(process.stdout.readline())["initial_peers"]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def look(program):
    """look(ADDRESSES, OPTIONS): what cohive-dht finds for the key "greeting", None where it finds nothing."""

    def found(addresses, *options):
        done = subprocess.run([program("cohive-dht"), "--json", "--initial-peers", *addresses, *options, "get", "greeting"],
                              capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout.splitlines()[0])["value"] if done.returncode == 0 else None

    return found


async def joined(addresses, authorizer, p2p):
    """A Python node in the swarm; an error where nobody there answers it."""
    return await DHTNode.create(p2p=p2p, initial_peers=addresses, authorizer=authorizer, wait_timeout=3)


async def greets(addresses, authorizer, p2p):
    """Whether a Python node joins and stores."""
    try:
        node = await joined(addresses, authorizer, p2p)
    except RuntimeError:
        return False
    stored = await node.store("greeting", "hello", get_dht_time() + 600)
    assert (await node.get("greeting", latest=True)).value == "hello"
    await node.shutdown()
    return stored


async def with_p2p(addresses, use, **options):
    p2p = await P2P.create(initial_peers=addresses, host_maddrs=[LISTEN], **options)
    try:
        return await use(p2p)
    finally:
        await p2p.shutdown()


async def test_a_python_node_that_knows_the_secret_is_a_member(bootstrap, look, tmp_path):
    secret, other = written(tmp_path / "secret", SECRET), written(tmp_path / "other", OTHER_SECRET)
    addresses = bootstrap("--secret-file", secret)
    for authorizer in (lambda p2p: None, lambda p2p: BySecret(p2p.peer_id, OTHER_SECRET)):
        assert not await with_p2p(addresses, lambda p2p: greets(addresses, authorizer(p2p), p2p))
    assert await with_p2p(addresses, lambda p2p: greets(addresses, BySecret(p2p.peer_id, SECRET), p2p))
    assert look(addresses, "--secret-file", secret) == "hello"
    assert look(addresses) is None
    assert look(addresses, "--secret-file", other) is None


async def test_a_python_node_on_the_list_is_a_member(bootstrap, look, tmp_path):
    (listed, listed_id), (stranger, stranger_id) = (new_identity(tmp_path / name) for name in ("listed", "stranger"))
    (_, node_id), (_, looking_id) = (new_identity(tmp_path / name) for name in ("node", "looking"))
    everybody = [listed_id, node_id, looking_id]
    members = written(tmp_path / "members", "\n".join(everybody))
    addresses = bootstrap("--members", members, "--identity-path", tmp_path / "node")

    async def try_as(name, identity):
        authorizer = ByList(identity, [*everybody, stranger_id])
        return await with_p2p(addresses, lambda p2p: greets(addresses, authorizer, p2p), identity_path=str(tmp_path / name))

    assert not await try_as("stranger", stranger)
    assert await try_as("listed", listed)
    assert look(addresses, "--members", members, "--identity-path", tmp_path / "looking") == "hello"
    assert look(addresses, "--members", members, "--identity-path", tmp_path / "stranger") is None
