"""Hands in a patch with absolute paths and paths that lead out of the tree."""

from attack import Attack

ATTACK = Attack(
    patch=b"""--- /dev/null
+++ b/../../../../tmp/ls-attack-outside
@@ -0,0 +1 @@
+x
--- /dev/null
+++ /tmp/ls-attack-outside
@@ -0,0 +1 @@
+x
"""
)
