"""The CDK app: `make synth` writes its CloudFormation template without any credentials, `cdk deploy` deploys it.

The CDK command line runs it by `cdk.json`, and says where the template goes; so does `make synth`.
"""

from __future__ import annotations

from aws_cdk import App

from infra.stack import LithifyStack

STACK_NAME = "Lithify"


def build() -> App:
    # No analytics, no metadata: the template is the same on every machine.
    app = App(analytics_reporting=False, context={"aws:cdk:disable-path-metadata": True})
    LithifyStack(app, STACK_NAME)
    return app


if __name__ == "__main__":
    build().synth()
