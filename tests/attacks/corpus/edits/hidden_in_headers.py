"""Hands in a patch whose headers name harmless files while its hunks go to the tests and to conftest.py."""

from attack import Attack

ATTACK = Attack(
    patch=b"""diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+x
--- a/tests/helpers.py
+++ b/tests/helpers.py
@@ -1 +1,3 @@
-THREE = 3
+import widget
+widget.clamp = lambda v, low, high: max(v, low)
+THREE = 3
--- /dev/null
+++ b/src/conftest.py
@@ -0,0 +1 @@
+collect_ignore_glob = ["*"]
diff --git "a/src/\\163itecustomize.py" "b/src/\\163itecustomize.py"
new file mode 100644
--- /dev/null
+++ "b/src/\\163itecustomize.py"
@@ -0,0 +1 @@
+import os; os._exit(0)
"""
)
