"""`python .ci/audit.py PIP_AUDIT`: fail where an advisory is known on a package that requirements.lock pins.

Where the advisory service cannot be reached nothing is known: that is said, and fails nothing.
"""

import json
import re
import subprocess
import sys
import urllib.request

OPTIONS = ["--strict", "--no-deps", "--disable-pip", "--requirement", "requirements.lock", "--format", "json"]
AWAY = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|Max retries exceeded|Could not connect|ProxyError|SSLError"
)


def answers() -> bool:
    """Return whether the service knows pip: a mirror may serve files and no advisories."""
    try:
        with urllib.request.urlopen("https://pypi.org/pypi/pip/json", timeout=15) as response:
            return "vulnerabilities" in json.load(response)
    except (OSError, ValueError):
        return False


def main(tool: str) -> str | None:
    """Run the tool; return what is to be failed with, if anything."""
    done = subprocess.run([tool, *OPTIONS], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        if AWAY.search(done.stderr) or ("not found on PyPI" in done.stderr and not answers()):
            print("The advisory service cannot be reached: nothing was checked.")
            return None
        return f"{tool} failed:\n{done.stderr}"
    found = [(package, advisory) for package in packages for advisory in package.get("vulns", ())]
    for package, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "none yet"
        print(f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    if found:
        return f"{len(found)} advisories on {len(packages)} packages: raise their versions by `make lock`"
    print(f"No advisory is known on any of {len(packages)} packages.")
    return None if done.returncode == 0 else f"{tool} failed:\n{done.stderr}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
