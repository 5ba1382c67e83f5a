"""Has `import hivemind` mean cohive in the processes of multiprocessing's fork server, which imports this; see
as_hivemind."""

from .as_hivemind import install

install()
