"""join_line: what others type to join a swarm."""

from __future__ import annotations

import ipaddress
import os
import shlex
import sys
from typing import Any, List

from . import as_hivemind


def addresses_for_others(dht: Any) -> List[str]:
    """The addresses by which other machines join; those of this machine alone where there are no others."""
    all_of_them = [str(address) for address in dht.get_visible_maddrs()]

    def is_local(address: str) -> bool:
        try:
            return ipaddress.ip_address(address.split("/")[2]).is_loopback
        except ValueError:
            return False

    return [address for address in all_of_them if not is_local(address)] or all_of_them


def join_line(dht: Any) -> str:
    """The command by which others start this program as a peer of the same swarm: ``INITIAL_PEERS=... python
    script.py --flags``, with ``-m`` where it was started so, and ``python ...`` in a notebook. Strategies of Lightning,
    and a DHT that has ``peers_from_environment=True``, read the variable.
    """
    # The main module of a notebook has no file, and the arguments are those of its kernel.
    has_file = hasattr(sys.modules.get("__main__"), "__file__")
    known = has_file and bool(sys.argv) and sys.argv[0] not in ("", "-c")
    words = [*as_hivemind.program(), *sys.argv[1:]] if known else ["..."]
    python = os.path.basename(sys.executable or "python")
    return f"INITIAL_PEERS={','.join(addresses_for_others(dht))} {shlex.join([python, *words])}"
