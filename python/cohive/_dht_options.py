"""Options of the library for the keywords of DHT(), which are hivemind's and ours."""

from __future__ import annotations

import difflib
import logging
import os
import warnings
from typing import Any, Collection, Dict, Iterable, Optional, Sequence, Set, Tuple

from .multiaddr import Multiaddr

logger = logging.getLogger("cohive.dht")

# Keywords of hivemind's DHT whose values go to the library under the same names.
_PASSED = frozenset(
    """bucket_size num_replicas depth_modulo parallel_rpc wait_timeout refresh_timeout bootstrap_timeout cache_locally
    cache_nearest cache_size cache_refresh_before_expiry cache_on_store reuse_get_requests chunk_size blacklist_time
    backoff_rate client_mode ensure_bootstrap_success host_maddrs announce_maddrs identity_path nat_port_map use_relay
    trusted_relays force_reachability""".split()
)
# Ours.
_OWN = frozenset(
    "beam_size max_records max_value_bytes search_timeout operation_timeout wait_for_swarm metrics_address "
    "metrics_token_file trace_file max_upload max_download congestion_control connections_per_peer secret_file "
    "members_file peers_from_environment bootstrap relay_service".split()
)
# hivemind's that mean nothing here; with these values they ask for nothing.
_IDLE: Dict[str, Tuple[Any, ...]] = {
    "strict": (True,),
    "check_if_identity_free": (True,),
    "auto_nat": (True,),
    "conn_manager": (True,),
    "tls": (True,),
    "relay_hop_limit": (0,),
    "idle_timeout": (30,),
    "startup_timeout": (15,),
    "persistent_conn_max_msg_size": (),
    "quic": (None, False),
    "use_relay_hop": (None,),
    "use_relay_discovery": (None,),
    "use_auto_relay": (False, True),
    "node_id": (None,),
}
_OTHER = frozenset(("no_listen", "dht_mode", "use_ipfs", "authorizer"))
_KNOWN = _PASSED | _OWN | _OTHER | set(_IDLE)
# With those that DHT() names itself and Optimizer does not have.
_OF_DHT = _KNOWN | {"initial_peers", "num_workers", "record_validators"}
_POINTLESS: Set[str] = set()  # keywords that a warning has named


def refuse_unknown(callee: str, given: Iterable[str], known: Collection[str], place_of_dht: str = "") -> None:
    """Raises TypeError for a keyword that is not known.

    :param callee: what was called with the keywords
    :param place_of_dht: where keywords of DHT() belong; empty: nowhere
    """
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if place_of_dht and name in _OF_DHT:
            hint = f": it is one of DHT(), and belongs {place_of_dht}"
        raise TypeError(f"{callee}() got an unexpected keyword argument {name!r}{hint}")


def library_options(initial_peers: Optional[Sequence[Any]], num_workers: int, kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Options of the library for the keywords of DHT(); TypeError or ValueError for what cannot be meant."""
    refuse_unknown("DHT", kwargs, _KNOWN)
    if kwargs.get("use_ipfs"):
        raise ValueError("cohive does not speak to IPFS: give initial_peers, the addresses of a peer of your swarm")
    if kwargs.get("authorizer") is not None:
        raise ValueError("cohive's swarms with members take secret_file or members_file in place of an authorizer")
    for name, idle in _IDLE.items():
        if name in kwargs and idle and kwargs[name] not in idle and name not in _POINTLESS:
            _POINTLESS.add(name)
            warnings.warn(f"{name}={kwargs[name]!r} has no meaning for cohive", UserWarning, stacklevel=4)
    options: Dict[str, Any] = {
        "peers_from_environment": False,
        "host_maddrs": ["/ip4/127.0.0.1/tcp/0"],
        "num_workers": num_workers,
    }
    for name in _PASSED | _OWN:
        if kwargs.get(name) is not None:
            value = kwargs[name]
            options[name] = [str(one) for one in value] if name.endswith(("maddrs", "_relays")) else value
            if name.endswith(("_path", "_file")):
                options[name] = os.fspath(value)
    options["initial_peers"] = [str(one) for one in initial_peers or ()]
    if kwargs.get("force_reachability") == "public" and kwargs.get("use_relay", True):
        options.setdefault("relay_service", True)  # as the daemon of hivemind has it
    if kwargs.get("no_listen"):
        options["host_maddrs"] = []
    if kwargs.get("dht_mode", "server") == "client":
        options["client_mode"] = True
    if not options["host_maddrs"] and not options.get("client_mode"):
        options.setdefault("force_reachability", "private")  # others reach it through a relay
    for name in ("initial_peers", "host_maddrs", "announce_maddrs", "trusted_relays"):
        given = options.get(name, ())
        of_quic = [address for address in given if {"quic", "quic-v1"} & set(Multiaddr(address))]
        if of_quic and len(of_quic) == len(given):
            raise ValueError(f"{of_quic[0]}: cohive speaks TCP, not QUIC; use /ip4/.../tcp/PORT")
        if of_quic:  # as examples of hivemind have it: both
            options[name] = [address for address in given if address not in of_quic]
            logger.debug("%s: cohive speaks TCP, not QUIC: used without %s", name, ", ".join(of_quic))
    return options
