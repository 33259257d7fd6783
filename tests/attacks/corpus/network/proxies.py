"""Goes through the proxies that environment and configuration of the machine name."""

from attack import Attack, tried

ATTACK = Attack(
    (
        tried(
            "env | grep -i proxy && echo GAINED; grep -ri proxy /etc/environment /etc/apt /etc/pip.conf && echo GAINED\n"
            "for proxy in 127.0.0.1:3128 127.0.0.1:8080 10.0.0.1:3128; do\n"
            "    https_proxy=http://$proxy timeout 5 python3 -c 'import urllib.request as u; "
            'u.urlopen("https://pypi.org/simple/")\' 2>/dev/null && echo GAINED\ndone'
        ),
    )
)
