"""Spark 3.5 with Iceberg.

The package that has Iceberg's runtime leaves out Jackson and Apache's HTTP client, which the runtime expects under
names of its own. So it gets the Jackson of PySpark and the HTTP client of Bodo's connector, with their classes renamed.
"""

import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import bodo_iceberg_connector
import pyspark
from pyspark.sql import SparkSession
from snowpark_connect_deps_iceberg import get_jars_dir

PACKAGES = ("com/fasterxml/jackson", "org/apache/hc")
SHADED = "org/apache/iceberg/shaded"
JACKSON = ("jackson-core-2", "jackson-annotations-2", "jackson-databind-2")
HTTP_CLIENT = ("httpclient5", "httpcore5-5", "httpcore5-h2")
TLS = "org/apache/hc/client5/http/ssl/TlsSocketStrategy"
"""An interface that only a newer client has. The runtime names it, and uses it for https alone."""

UTF8, LONG, DOUBLE, CLASS = 1, 5, 6, 7
CONSTANT_BYTES = {3: 4, 4: 4, LONG: 8, DOUBLE: 8, CLASS: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}
"""Of each kind of constant in a class file, after its tag (Java Virtual Machine Specification, section 4.4)."""


def renamed(text: str) -> str:
    for name in PACKAGES:
        for separator in "/.":
            old = name.replace("/", separator)
            text = text.replace(old, f"{SHADED}/{name}".replace("/", separator))
    return text


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


def an_interface(name: str) -> bytes:
    """A class file of an interface without methods (the same specification, section 4.1)."""

    def class_constant(of: str, text_at: int) -> bytes:
        return struct.pack(">BH", UTF8, len(of)) + of.encode() + struct.pack(">BH", CLASS, text_at)

    pool = class_constant(name, 1) + class_constant("java/lang/Object", 3)
    is_public_abstract_interface, own, parent = 0x0601, 2, 4
    rest = struct.pack(">HHHHHHH", is_public_abstract_interface, own, parent, 0, 0, 0, 0)
    return struct.pack(">IHHH", 0xCAFE_BABE, 0, 52, 5) + pool + rest


def write_missing(path: Path) -> None:
    """The classes that the runtime lacks."""
    spark = Path(pyspark.__file__).parent / "jars"
    bodo = Path(bodo_iceberg_connector.__file__).parent / "jars" / "libs"
    jars = [next(spark.glob(f"{each}*.jar")) for each in JACKSON] + [
        next(bodo.glob(f"{each}*.jar")) for each in HTTP_CLIENT
    ]
    with zipfile.ZipFile(path, "w") as written:
        written.writestr(renamed(f"{TLS}.class"), an_interface(renamed(TLS)))
        for jar in jars:
            with zipfile.ZipFile(jar) as read:
                for name in read.namelist():
                    if not name.startswith(PACKAGES) or name.endswith("/"):
                        continue
                    body = read.read(name)
                    is_class = name.endswith(".class")
                    written.writestr(renamed(name), body[:10] + b"".join(constants(body)) if is_class else body)


@contextmanager
def spark_with_iceberg(settings: Mapping[str, str]) -> Iterator[SparkSession]:
    with tempfile.TemporaryDirectory() as folder:
        missing = Path(folder) / "missing.jar"
        write_missing(missing)
        (runtime,) = get_jars_dir().glob("iceberg-spark-runtime-3.5_2.12-*.jar")
        builder = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", f"{runtime},{missing}")
            # It lives for seconds: to optimise its code would take longer than it saves.
            .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        )
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
