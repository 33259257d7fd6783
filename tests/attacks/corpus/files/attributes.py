"""Has git convert the files of the patch by attributes: filters, encodings, line ends, merge and diff drivers."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(
    (
        "echo '* -text -diff binary filter=x working-tree-encoding=UTF-16 eol=crlf ident export-ignore merge=x'"
        " | tee .gitattributes src/.gitattributes; echo '*' > .gitignore; echo '$Id$' > new.txt",
    ),
    with_fix=Outcome.SOLVED,
)
