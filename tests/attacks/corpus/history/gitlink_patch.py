"""Hands in a patch that adds a submodule entry and changes where the tests' folder comes from."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    patch=b"""diff --git a/tests b/tests
new file mode 160000
index 0000000000000000000000000000000000000000..1111111111111111111111111111111111111111
--- /dev/null
+++ b/tests
@@ -0,0 +1 @@
+Subproject commit 1111111111111111111111111111111111111111
""",
    outcome=Outcome.UNSOLVED,
)
