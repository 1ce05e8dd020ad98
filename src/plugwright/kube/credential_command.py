"""The command of a kubeconfig that prints credentials, as clouds have it: `aws eks get-token` and the like.

Loaded only where a kubeconfig has one; a daemon in a pod never does.
"""

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from plugwright.errors import ConfigError

__all__ = ["CredentialCommand"]

_LIMIT = 60.0  # seconds; some open a browser
_EARLY = timedelta(seconds=30)


class CredentialCommand:
    """`command` is the `exec` entry of a user as `kubeconfig.load` gives it."""

    def __init__(self, command: Mapping[str, Any]) -> None:
        self._words = [str(command.get("command") or ""), *map(str, command.get("args") or ())]
        self._variables = {str(entry["name"]): str(entry["value"]) for entry in command.get("env") or ()}
        self._token, self._until = "", datetime.min.replace(tzinfo=UTC)
        self._running = threading.Lock()

    def token(self) -> str:
        """The one it printed last, until that is about to expire; blocks while it runs."""
        with self._running:
            if datetime.now(UTC) >= self._until:
                self._token, self._until = self._run()
            return self._token

    def _run(self) -> tuple[str, datetime]:
        name = self._words[0]
        try:
            done = subprocess.run(
                self._words, env={**os.environ, **self._variables}, capture_output=True, timeout=_LIMIT, check=True
            )
            status = json.loads(done.stdout)["status"]
            token = str(status["token"])
            until = status.get("expirationTimestamp")
            expires = datetime.fromisoformat(until) - _EARLY if until else datetime.max.replace(tzinfo=UTC)
        except subprocess.CalledProcessError as error:
            words = error.stderr.decode(errors="replace").strip()[-300:]
            raise ConfigError(f"cannot get credentials: {name} ended with {error.returncode}: {words}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"cannot get credentials by {name}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot get credentials: {name} must print an ExecCredential with a token") from error
        return token, expires
