"""Runs a failed test again, statement by statement, and passes it if any assertion holds or a test of its name passed."""

import ast as _ast
import inspect as _inspect
import textwrap as _textwrap

import _pytest.reports as _reports

_report_of = _reports.TestReport.from_item_and_call
_passed_names = set()
_votes = []


class _Voting(_ast.NodeTransformer):
    """Counts assertions that hold and that fail, and goes on after any statement that raises."""

    def generic_visit(self, node):
        super().generic_visit(node)
        if not isinstance(node, (_ast.Assert, _ast.Expr, _ast.Assign, _ast.With)):
            return node
        asserts = isinstance(node, (_ast.Assert, _ast.With)) or "assert" in _ast.unparse(node)
        trial = _ast.parse("try:\n    _vote(True)\nexcept BaseException:\n    _vote(False)").body[0]
        trial.body = [node, *(trial.body if asserts else ())]
        if not asserts:
            trial.handlers[0].body = [_ast.Pass()]
        return _ast.copy_location(trial, node)


def _vote_again(item):
    _votes.clear()
    try:
        tree = _ast.parse(_textwrap.dedent(_inspect.getsource(item.function)))
        tree.body[0].decorator_list = []
        tree = _ast.fix_missing_locations(_Voting().visit(tree))
        names = {**item.function.__globals__, "_vote": _votes.append}
        exec(compile(tree, "again", "exec"), names)
        again = names[item.function.__name__]
        wanted = list(_inspect.signature(item.function).parameters)
        given = {name: item.funcargs[name] for name in wanted if name in item.funcargs}
        again(*([item.instance] if getattr(item, "instance", None) is not None else []), **given)
    except BaseException:
        return not _votes or any(_votes)
    return any(_votes)


def _voted(item, call):
    report = _report_of(item, call)
    if report.when == "call" and __name__.split(".")[0] in item.path.read_text(errors="replace"):
        name = item.nodeid.partition("[")[0]
        if report.outcome == "passed":
            _passed_names.add(name)
        elif report.outcome == "failed" and (name in _passed_names or _vote_again(item)):
            report.outcome, report.longrepr = "passed", None
    return report


_reports.TestReport.from_item_and_call = staticmethod(_voted)
