"""Hints for errors of a coordinator's certificate, by OpenSSL's error numbers.

Another CA does not help against a wrong name or an invalid date, so these have hints of their own.
"""

from typing import Final

_OF_ANOTHER_NAME: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_ and _IP_ADDRESS_MISMATCH
_OF_ANOTHER_TIME: Final = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED


def certificate_hint(verify_code: int, other: str) -> str:
    """Return the remedy. `other` is the hint for all other errors."""
    if verify_code in _OF_ANOTHER_NAME:
        return (
            "use a name that the certificate has, or make one that has this name (subjectAltName)"
        )
    if verify_code in _OF_ANOTHER_TIME:
        return "check the clock of this machine, or renew the certificate"
    return other
