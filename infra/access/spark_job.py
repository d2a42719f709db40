"""Permissions of the Spark job: one session, on its own machines. No queue, topic, task token, or log of others."""

from infra.access.places import (
    ARCHIVE_FOLDER,
    EMR_TAG,
    LOG_FOLDER,
    Places,
    clear_hints,
    list_lakes,
    list_state,
    read_lakes,
    use_key,
    write_lakes,
)
from infra.permissions import Part, Permission, actions


def spark_job_part(places: Places, *, serverless: bool) -> Part:
    return Part(
        "Spark job",
        "SparkJobRole",
        ("emr-serverless",) if serverless else ("ec2",),
        (
            *list_lakes(places),
            *read_lakes(places),
            write_lakes(places),
            clear_hints(places),
            list_state(places, "job_runs/"),
            Permission(
                "ReadAndWriteSessions",
                "plan, log, heartbeat; it has no right to delete",
                actions("s3", "AbortMultipartUpload GetObject PutObject"),
                places.state_objects("job_runs/*/sessions/*", "job_runs/*/bundles/*"),
            ),
            Permission(
                "ReadArchive",
                "its Python environment",
                ("s3:GetObject",),
                (places.in_state_bucket(f"{ARCHIVE_FOLDER}/*"),),
            ),
            Permission("WriteLogs", "Spark's own", ("s3:PutObject",), (places.in_state_bucket(f"{LOG_FOLDER}/*"),)),
            use_key(places, writes=True),
        ),
    )


def emr_service_part(places: Places, job_role: str) -> Part:
    """EMR itself, which starts and ends the machines."""
    return Part(
        "EMR",
        "EmrServiceRole",
        ("elasticmapreduce",),
        (
            Permission(
                "PassJobRole",
                "to the machines that it starts",
                ("iam:PassRole",),
                (job_role,),
                {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
            ),
            Permission(
                "EncryptVolumes",
                "of the machines that it starts",
                actions("kms", "Decrypt DescribeKey Encrypt GenerateDataKeyWithoutPlaintext ReEncryptFrom ReEncryptTo"),
                (places.key,),
            ),
            Permission(
                "LendKeyToVolumes",
                "to AWS's own services only",
                ("kms:CreateGrant",),
                (places.key,),
                {"Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
        ),
        tags=dict((EMR_TAG,)),
        managed_policies=("service-role/AmazonEMRServicePolicy_v2",),
    )
