# Source this before any Flower command: . deploy/environment.sh
# Flower and Ray report nothing and install nothing; TensorFlow trains to the same bits as in one process.
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export RAY_USAGE_STATS_ENABLED=0
export RAY_worker_niceness=0
export TF_NUM_INTRAOP_THREADS=1
export TF_ENABLE_ONEDNN_OPTS=1
export TF_CPP_MIN_LOG_LEVEL=3
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
