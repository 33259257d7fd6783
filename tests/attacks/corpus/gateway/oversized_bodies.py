"""Sends bodies that are larger than any report or conversation, deeper than a parser goes, or never what they say."""

import http.client
from urllib.parse import urlsplit

from attack import GatewayAttack
from insider import bearer, record, running, send

from lightning_smith.gateway.admission import MAX_COMPLETION_BYTES, MAX_REPORT_BYTES
from lightning_smith.gateway.tokens import Role


def chunked(stack, path: str, token: str, size: int) -> int:
    """Status of a body that does not say how long it is."""
    connection = http.client.HTTPConnection(urlsplit(stack.gateway_url).netloc, timeout=60)
    headers = dict(bearer(token))
    piece = b"x" * 2**20
    connection.request(
        "POST", path, (piece for _ in range(size // len(piece) + 1)), headers, encode_chunked=True
    )
    return connection.getresponse().status


def run(stack) -> bool:
    """Whether such a body was kept, or the gateway does not answer others afterwards."""
    with running(stack) as attacker:
        report, model = attacker.token(Role.REPORT), attacker.token(Role.MODEL)
        answers = []
        for path, token, limit in (
            (attacker.events_path, report, MAX_REPORT_BYTES),
            (attacker.completions_path, model, MAX_COMPLETION_BYTES),
        ):
            answers.append(send(stack, "POST", path, bearer(token), b"x" * (limit + 1))[0])
            answers.append(chunked(stack, path, token, limit))
        assert set(answers) == {413}, answers
        deep, outcome = "[" * 200 + "]" * 200, b'{"event_type": "outcome", "data": %s}'
        bodies = (
            *(
                outcome % data
                for data in (b'{"reward": NaN}', b'{"reward": 1e999}', b'{"error": "\\ud800"}', b"[]")
            ),
            *(b"", b"\xff", b"[" * 100_000, b"null", b"[]", b'{"event_type": "outcome"}', b'{"data": {}}'),
            *(
                outcome % f'{{"error": {deep}}}'.encode(),
                outcome % b"{}" + b"{}",
                outcome % b'{"n": ' + b"9" * 5000,
            ),
        )
        malformed = [send(stack, "POST", attacker.events_path, bearer(report), body)[0] for body in bodies]
        malformed.append(attacker.report("outcome", record("linger-1", error=[[[[[[[[]]]]]]]])))
        kept = attacker.kept("outcome")
        answered = attacker.ask() == 200 and stack.gateway.state()["inflight"] <= 1
    return bool(kept) or not answered or set(malformed) != {400}


ATTACK = GatewayAttack(run)
