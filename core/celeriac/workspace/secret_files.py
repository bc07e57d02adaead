"""Files whose names say that they hold secrets. They are neither read, changed nor kept."""

from fnmatch import fnmatchcase

SECRET_NAMES = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pgpass", ".npmrc", ".pypirc",
    ".git-credentials", ".htpasswd", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore",
    "*.kdbx", "*.ppk", "*.asc", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials",
    "credentials.json", "secrets.json", "secrets.y*ml", "secrets.toml", "secrets.ini",
    "service-account*.json", "*.tfstate", "*.tfvars",
)  # fmt: skip
SECRET_FOLDERS = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store")
HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")


def is_secret(parts: tuple[str, ...], *, is_folder: bool = False) -> bool:
    """Whether the path, by its names alone, is taken for one that holds secrets."""
    names = [part.casefold() for part in parts]
    if any(name in SECRET_FOLDERS for name in names):
        return True
    last = names[-1] if names and not is_folder else ""
    return last not in HARMLESS and any(fnmatchcase(last, pattern) for pattern in SECRET_NAMES)
