# Source me. Intel's package needed it to find its libraries; ours finds them by itself, so all this does
# is to put the directory of mpiexec.hydra on PATH. Safe under `set -eu`, in sh and bash, any number of
# times; it leaves "$@" alone and sets no variable but PATH.
if [ -n "${VIRTUAL_ENV:-}" ] && [ -x "${VIRTUAL_ENV}/bin/mpiexec.hydra" ]; then
    case ":${PATH:-}:" in
        *":${VIRTUAL_ENV}/bin:"*) ;;
        *) PATH="${VIRTUAL_ENV}/bin${PATH:+:${PATH}}"; export PATH ;;
    esac
fi
