"""Log-probabilities and advantages of each token of some rows, as the trainer had them."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision: str | None = "0025"
COLUMNS = ("token_logprobs", "token_advantages")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("batch_item", sa.Column(name, sa.LargeBinary, nullable=True))


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("batch_item", name)
