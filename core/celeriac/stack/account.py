"""Who runs the servers: PostgreSQL refuses root, so root lends them an account without rights.

Nothing that exists is changed for it: no user is added and no folder opened. What the account
cannot reach (a program below a home that is closed to others) is linked or copied to where it can.
"""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from celeriac.errors import StackFailed
from celeriac.stack.programs import Programs

LENT = ("postgres", "nobody")
SYSTEM_FOLDER = Path("/var/lib/celeriac")
"""Where things lie that the account could not reach at their own place."""

TRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine that is not root."""

    name: str
    uid: int
    gid: int

    def can_enter(self, folder: Path) -> bool:
        """Tried out, since access lists and mounts decide it together with the modes."""
        return self._can_run("/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder))

    def can_run(self, program: Path) -> bool:
        return self._can_run(str(program), "--version")

    def own(self, path: Path, mode: int) -> None:
        """Give the account a file or folder."""
        os.chown(path, self.uid, self.gid)
        path.chmod(mode)

    def _can_run(self, *command: str) -> bool:
        try:
            tried = subprocess.run(  # noqa: S603 - a server's program, or the shell
                command,
                cwd="/",
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                capture_output=True,
                timeout=TRY_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return tried.returncode == 0


def account_for(servers: Path) -> Account | None:
    """The account for the servers whose data lie in `servers`; None to run them as ourselves.

    Raises `StackFailed` if there is none that PostgreSQL would run as.
    """
    if os.geteuid() != 0:
        _require_name()
        return None
    for data in sorted(servers.glob("*/")):
        # Made by somebody else, before root came: his they stay.
        if (uid := data.stat().st_uid) != 0:
            try:
                found = pwd.getpwuid(uid)
            except KeyError:
                continue
            return Account(found.pw_name, found.pw_uid, found.pw_gid)
    for name in LENT:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, found.pw_uid, found.pw_gid)
    raise StackFailed(
        f"PostgreSQL does not run as root, and this system has none of the accounts "
        f"{' and '.join(LENT)} to run it as: use an ordinary account, or name servers with "
        "CELERIAC_DATABASE_URL and CELERIAC_BROKER_URL"
    )


def reachable(programs: Programs, account: Account | None) -> Programs:
    """The programs where the account can run them: where they are, else linked or copied.

    Raises `StackFailed`.
    """
    if account is None or account.can_run(programs.server_path):
        return programs
    if not programs.folders:
        raise StackFailed(f"account {account.name} cannot run {programs.server_path}")
    copy = replace(programs, root=SYSTEM_FOLDER / "programs" / _fingerprint(programs))
    if not copy.root.is_dir():
        _link_or_copy(programs, copy.root)
    if not account.can_run(copy.server_path):
        raise StackFailed(
            f"account {account.name} can run neither {programs.server_path} nor its copy "
            f"{copy.server_path}: see whether {SYSTEM_FOLDER} is mounted noexec"
        )
    return copy


def _link_or_copy(programs: Programs, root: Path) -> None:
    """Under a temporary name first: a copy that was interrupted must not pass for one."""
    started = root.with_name(f"{root.name}.{os.getpid()}")
    try:
        make_system_folder(root.parent)
        for folder in programs.folders:
            shutil.copytree(
                programs.root / folder,
                started / folder,
                symlinks=True,
                copy_function=_link_or_copy_file,
            )
        for made in [started, *(path for path in started.rglob("*") if path.is_dir())]:
            made.chmod(0o755)
        started.rename(root)
    except OSError as error:
        shutil.rmtree(started, ignore_errors=True)
        if not root.is_dir():  # else another process was faster
            raise StackFailed(
                f"cannot copy {programs.root} to {root} for an account without rights: {error}"
            ) from error


def make_system_folder(folder: Path) -> None:
    """A folder below `SYSTEM_FOLDER` that everybody may enter, whatever the umask. `OSError`."""
    for made in (SYSTEM_FOLDER, folder):
        if not made.is_dir():
            made.mkdir(exist_ok=True)
            made.chmod(0o755)


def _link_or_copy_file(source: str, target: str) -> None:
    mode = stat.S_IMODE(Path(source).stat().st_mode)
    wanted = 0o755 if mode & stat.S_IXUSR else 0o644
    if mode & wanted == wanted:
        try:
            os.link(source, target)
        except OSError:  # another file system
            pass
        else:
            return
    shutil.copyfile(source, target)
    Path(target).chmod(wanted)


def _fingerprint(programs: Programs) -> str:
    """Differs for another place, and for another version at the same place."""
    found = programs.server_path.stat()
    known = f"{programs.server_path}\n{found.st_ino}\n{found.st_mtime_ns}\n{found.st_size}"
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _require_name() -> None:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise StackFailed(
            f"user id {os.geteuid()} has no entry in /etc/passwd, without which PostgreSQL does "
            "not start: use an account that has one, or root, or name servers with "
            "CELERIAC_DATABASE_URL and CELERIAC_BROKER_URL"
        ) from None
