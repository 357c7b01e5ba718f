"""Whether a chat template could be used: compiled as transformers would, and thrown away."""

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from trinity.errors import UserError


class _Generation(Extension):
    """The tag by which transformers marks what the assistant said; here its content alone."""

    tags = {"generation"}  # noqa: RUF012 (so declared by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def check_template(template: str, whose: str) -> None:
    """Its syntax, and that every filter and test it names is there.

    Raises: UserError with the line of the first mistake.
    """
    environment = Environment(extensions=["jinja2.ext.loopcontrols", _Generation])
    try:
        environment.compile(template)
    except TemplateSyntaxError as error:
        raise UserError(
            f"the chat template {whose} is no valid Jinja (line {error.lineno}: "
            f"{error.message}): correct it"
        ) from error
