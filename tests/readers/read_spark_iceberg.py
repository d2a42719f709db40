"""Reads an Apache Iceberg table with Spark 3.5: TABLE -> Arrow IPC on standard output.

The package that has Iceberg's runtime leaves out Jackson, which the runtime expects under names of its own. So it gets
the Jackson of PySpark, with its classes renamed.
"""

import struct
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession
from snowpark_connect_deps_iceberg import get_jars_dir

NAME, NEW_NAME = "com/fasterxml/jackson", "org/apache/iceberg/shaded/com/fasterxml/jackson"
JACKSON = ("jackson-core-2", "jackson-annotations-2", "jackson-databind-2")

UTF8, LONG, DOUBLE = 1, 5, 6
CONSTANT_BYTES = {3: 4, 4: 4, LONG: 8, DOUBLE: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
"""Of each kind of constant in a class file, after its tag (Java Virtual Machine Specification, section 4.4)."""


def renamed(text: str) -> str:
    return text.replace(NAME, NEW_NAME).replace(NAME.replace("/", "."), NEW_NAME.replace("/", "."))


def constants(body: bytes) -> Iterator[bytes]:
    """The constants of a class file with new names, then the rest of the file."""
    (count,) = struct.unpack_from(">H", body, 8)
    at, number = 10, 1
    while number < count:
        tag = body[at]
        if tag == UTF8:
            (size,) = struct.unpack_from(">H", body, at + 1)
            text = body[at + 3 : at + 3 + size]
            new = renamed(text.decode("latin-1")).encode("latin-1")
            yield struct.pack(">BH", tag, len(new)) + new
            at += 3 + size
        else:
            yield body[at : at + 1 + CONSTANT_BYTES[tag]]
            at += 1 + CONSTANT_BYTES[tag]
        number += 2 if tag in (LONG, DOUBLE) else 1
    yield body[at:]


def write_jackson(path: Path) -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    with zipfile.ZipFile(path, "w") as written:
        for prefix in JACKSON:
            (jar,) = jars.glob(f"{prefix}*.jar")
            with zipfile.ZipFile(jar) as read:
                for name in read.namelist():
                    if name.startswith(NAME) and name.endswith(".class"):
                        body = read.read(name)
                        written.writestr(renamed(name), body[:10] + b"".join(constants(body)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        jackson, rows = Path(folder) / "jackson.jar", f"{folder}/rows"
        write_jackson(jackson)
        (runtime,) = get_jars_dir().glob("iceberg-spark-runtime-3.5_2.12-*.jar")
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", f"{runtime},{jackson}")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            .getOrCreate()
        )
        spark.read.format("iceberg").load(sys.argv[1]).write.parquet(rows)
        spark.stop()
        table: pa.Table = pq.read_table(rows)
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)


main()
