"""Leaves files whose names are no UTF-8 where log and record would name them: among the tests, and with what forging takes."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        r"""mkdir -p tests/$'\xff' $'\xfe' src/widget/$'\xfd'
for name in tests/$'\xff.py' tests/$'\xffest_core.py' tests/$'\xff'/conftest.py $'\xfe'/conftest.py $'\xfe.pth' \
    src/widget/$'\xfd'/pytest.ini; do
    echo 'x = 1' > "$name"
done
echo 'import gc' > src/widget/$'\xfc.py'""",
    ),
    with_fix=Outcome.SOLVED,
)
