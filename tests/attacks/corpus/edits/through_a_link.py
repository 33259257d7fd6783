"""Hands in a patch that makes a link out of the tree and then writes through it."""

from attack import Attack

ATTACK = Attack(
    patch=b"""diff --git a/out b/out
new file mode 120000
--- /dev/null
+++ b/out
@@ -0,0 +1 @@
+/tmp
\\ No newline at end of file
diff --git a/out/ls-attack-outside b/out/ls-attack-outside
new file mode 100644
--- /dev/null
+++ b/out/ls-attack-outside
@@ -0,0 +1 @@
+x
"""
)
