# Source this file to add the directory of mpiexec.hydra to PATH. Intel's package needs its setvars.sh to find
# libraries; this one finds them without it. It works under `set -eu` in sh and bash, may be sourced repeatedly, does
# not change "$@", and sets only PATH.
if [ -n "${VIRTUAL_ENV:-}" ] && [ -x "${VIRTUAL_ENV}/bin/mpiexec.hydra" ]; then
    case ":${PATH:-}:" in
        *":${VIRTUAL_ENV}/bin:"*) ;;
        *) PATH="${VIRTUAL_ENV}/bin${PATH:+:${PATH}}"; export PATH ;;
    esac
fi
