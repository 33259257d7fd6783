"""Installs packages by every tool there is, from the network and from files."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "for tool in 'python -m pip install --timeout 1 --retries 0' 'uv pip install' 'conda install -y' 'apt-get install -y'"
            " 'easy_install' 'npm install'; do timeout 5 $tool six >/dev/null 2>&1 && echo GAINED $tool; done"
        ),
    )
)
