"""What can be wrong with a coordinator's certificate, by the numbers of OpenSSL, and what to do.

Another CA does not help where the name or the time does not fit, so that is told apart.
"""

from typing import Final

_OF_ANOTHER_NAME: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_ and _IP_ADDRESS_MISMATCH
_OF_ANOTHER_TIME: Final = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED


def certificate_hint(verify_code: int, other: str) -> str:
    """What mends it; `other` is what does in all cases but these."""
    if verify_code in _OF_ANOTHER_NAME:
        return (
            "use a name that the certificate has, or make one that has this name (subjectAltName)"
        )
    if verify_code in _OF_ANOTHER_TIME:
        return "see the clock of this machine, or renew the certificate"
    return other
