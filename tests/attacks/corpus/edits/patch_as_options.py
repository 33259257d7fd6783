"""Hands in a patch whose file names look like options and shell commands."""

from attack import Attack

ATTACK = Attack(
    patch=b"""diff --git a/--directory=tests b/--directory=tests
new file mode 100644
--- /dev/null
+++ b/--directory=tests
@@ -0,0 +1 @@
+x
diff --git a/$(touch tests/x)`id`;x b/$(touch tests/x)`id`;x
new file mode 100644
--- /dev/null
+++ b/$(touch tests/x)`id`;x
@@ -0,0 +1 @@
+x
"""
)
