# A cluster: Postgres and a NATS of three nodes by address; the services find one another by name.
#   trinity deploy secrets secrets --postgres db.example:5432 --nats nats.example:4222
#   for file in secrets/nomad/cluster/*.json; do nomad var put @$file; done
#   nomad job run -var-file=experiment.vars.json nomad/cluster.nomad.hcl
#   nomad job scale trinity explorer 4
variable "plan_file" {
  type        = string
  description = "The experiment's plan; paths are seen from the folder of this file."
  default     = "../plan.json"
}

variable "images" {
  type        = map(string)
  description = "Image of each service."
  default = {
    synchronizer = "trinity-synchronizer:0.1.0"
    buffer       = "trinity-buffer:0.1.0"
    trainer      = "trinity-trainer:0.1.0-gpu"
    explorer     = "trinity-explorer:0.1.0-gpu"
    studio       = "trinity-studio:0.1.0"
  }
}

variable "environment" {
  type        = map(map(string))
  description = "Variables of each service that the experiment adds."
  default     = { synchronizer = {}, buffer = {}, trainer = {}, explorer = {} }
}

variable "volumes" {
  type        = map(list(string))
  description = "Folders of each service, as docker's volumes: host:container:ro."
  default     = { synchronizer = [], buffer = [], trainer = [], explorer = [] }
}

variable "explorers" {
  type    = number
  default = 1
}

variable "explorer_hosts" {
  type        = number
  description = "Machines of the one engine, each with an explorer, which `explorers` counts."
  default     = 1
}

variable "trainers" {
  type        = number
  description = "Machines of the gang, each with a trainer."
  default     = 1
}

variable "explorer_gpus" {
  type    = number
  default = 0
}

variable "trainer_gpus" {
  type    = number
  default = 0
}

variable "sizes" {
  type        = map(map(number))
  description = "Of each service, in place of `shipped` below: cpu in MHz, memory in MiB, shm in bytes."
  default     = {}
}

variable "security" {
  type        = string
  description = "Folder of the nodes with the certificates and token of each service, in one of its name."
  default     = "/etc/trinity"
}

variable "stream_replicas" {
  type        = number
  description = "On how many of the brokers the stream of results is kept."
  default     = 3
}

locals {
  shipped = {
    synchronizer = { cpu = 500, memory = 1024 }
    buffer       = { cpu = 1000, memory = 4096 }
    trainer      = { cpu = 4000, memory = 65536, shm = 8589934592 }
    explorer     = { cpu = 4000, memory = 32768, shm = 8589934592 }
  }
  # Variables of your own, such as HF_TOKEN, if there are any: nomad var put nomad/jobs/trinity HF_TOKEN=...
  variables = "{{ if nomadVarExists \"nomad/jobs/trinity\" }}{{ with nomadVar \"nomad/jobs/trinity\" }}{{ range .Tuples }}{{ .K }}={{ .V }}\n{{ end }}{{ end }}{{ end }}"
  sizes = { for name, size in local.shipped : name => merge(size, lookup(var.sizes, name, {})) }
  # Where a service answers, for a file of variables.
  synchronizer = "{{ range nomadService 1 (env \"NOMAD_ALLOC_ID\") \"trinity-synchronizer\" }}{{ .Address }}:{{ .Port }}{{ end }}"
  buffer       = "{{ range nomadService 1 (env \"NOMAD_ALLOC_ID\") \"trinity-buffer\" }}{{ .Address }}:{{ .Port }}{{ end }}"
  # The trainer with the number 0, for the others: its own template stays as it is when it appears.
  leader = "{{ if ne (env \"NOMAD_ALLOC_INDEX\") \"0\" }}{{ range nomadService \"trinity-trainer\" }}{{ if .Tags | contains \"host-0\" }}{{ .Address }}:{{ .Port }}{{ end }}{{ end }}{{ end }}"

  # The explorer with the number 0, for the others of its engine: explorers of their own look for none.
  engine_leader = var.explorer_hosts > 1 ? "{{ if ne (env \"NOMAD_ALLOC_INDEX\") \"0\" }}{{ range nomadService \"trinity-explorer\" }}{{ if .Tags | contains \"host-0\" }}{{ .Address }}:{{ .Port }}{{ end }}{{ end }}{{ end }}" : ""

  # Of every service: its certificates and token, and where it may write. Compiled kernels cannot be
  # loaded from docker's tmpfs.
  own = {
    TRINITY_SECURITY_DIR = "/etc/trinity/tls"
    HOME                 = "/local"
    TMPDIR               = "/local"
    PYTHONPYCACHEPREFIX  = "/local/pycache"
  }
  # Of those that fetch models or data: kept while the task stays on a node.
  cache = { HF_HOME = "/alloc/data/huggingface" }
}

job "trinity" {
  type = "service"

  group "synchronizer" {
    count = 2

    network {
      port "grpc" {}
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }
    update {
      max_parallel     = 1
      min_healthy_time = "10s"
      auto_revert      = true
    }
    spread {
      attribute = "${node.unique.id}"
    }

    service {
      name     = "trinity-synchronizer"
      provider = "nomad"
      port     = "grpc"
      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "3s"
        check_restart {
          limit = 6
          grace = "120s"
        }
      }
    }

    task "migrate-synchronizer" {
      lifecycle {
        hook = "prestart"
      }
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.synchronizer
        args            = ["migrate"]
        volumes         = ["${var.security}/synchronizer:/etc/trinity/tls:ro"]
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env {
        TRINITY_SYNCHRONIZER_POSTGRES_DSN_FILE = "${NOMAD_SECRETS_DIR}/postgres-dsn"
      }
      template {
        destination = "secrets/postgres-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/synchronizer/migrate-synchronizer\" }}{{ .synchronizer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      resources {
        cpu    = 200
        memory = 512
      }
    }

    task "synchronizer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.synchronizer
        network_mode    = "host"
        volumes         = concat(["${var.security}/synchronizer:/etc/trinity/tls:ro"], var.volumes.synchronizer)
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, {
        TRINITY_SYNCHRONIZER_LISTEN            = "${NOMAD_IP_grpc}:${NOMAD_PORT_grpc}"
        TRINITY_SYNCHRONIZER_LOG_FORMAT        = "json"
        TRINITY_SYNCHRONIZER_POSTGRES_DSN_FILE = "${NOMAD_SECRETS_DIR}/postgres-dsn"
      }, var.environment.synchronizer)
      template {
        destination = "secrets/postgres-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/synchronizer/synchronizer\" }}{{ .synchronizer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      kill_timeout = "30s"
      resources {
        cpu    = local.sizes.synchronizer.cpu
        memory = local.sizes.synchronizer.memory
      }
    }
  }

  group "buffer" {
    count = 1

    network {
      port "grpc" {}
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }
    update {
      max_parallel     = 1
      min_healthy_time = "10s"
      auto_revert      = true
    }

    service {
      name     = "trinity-buffer"
      provider = "nomad"
      port     = "grpc"
      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "3s"
        check_restart {
          limit = 6
          grace = "120s"
        }
      }
    }

    task "migrate-buffer" {
      lifecycle {
        hook = "prestart"
      }
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.buffer
        args            = ["migrate"]
        volumes         = ["${var.security}/buffer:/etc/trinity/tls:ro"]
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env {
        TRINITY_BUFFER_POSTGRES_DSN_FILE = "${NOMAD_SECRETS_DIR}/postgres-dsn"
      }
      template {
        destination = "secrets/postgres-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/buffer/migrate-buffer\" }}{{ .buffer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      resources {
        cpu    = 200
        memory = 512
      }
    }

    task "buffer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.buffer
        network_mode    = "host"
        volumes         = concat(["${var.security}/buffer:/etc/trinity/tls:ro"], var.volumes.buffer)
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, local.cache, {
        TRINITY_BUFFER_LISTEN            = "${NOMAD_IP_grpc}:${NOMAD_PORT_grpc}"
        TRINITY_BUFFER_LOG_FORMAT        = "json"
        TRINITY_BUFFER_POSTGRES_DSN_FILE = "${NOMAD_SECRETS_DIR}/postgres-dsn"
        TRINITY_BUFFER_NATS_URL_FILE     = "${NOMAD_SECRETS_DIR}/nats-url"
        TRINITY_BUFFER_TASKSET_ROOTS     = "/data"
        TRINITY_BUFFER_STREAM_REPLICAS   = "${var.stream_replicas}"
      }, var.environment.buffer)
      template {
        destination = "secrets/postgres-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/buffer/buffer\" }}{{ .buffer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      template {
        destination = "secrets/nats-url"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/buffer/buffer\" }}{{ .buffer_nats_url }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      template {
        destination = "local/peers.env"
        env         = true
        data        = "TRINITY_BUFFER_SYNCHRONIZER=${local.synchronizer}"
      }
      template {
        destination = "secrets/variables.env"
        env         = true
        data        = local.variables
      }
      kill_timeout = "30s"
      resources {
        cpu    = local.sizes.buffer.cpu
        memory = local.sizes.buffer.memory
      }
    }
  }

  # One trainer, or one for each machine that its ranks fill: by their numbers the first one leads.
  group "trainer" {
    count = var.trainers

    network {
      port "grpc" {}
    }

    constraint {
      operator = "distinct_hosts"
      value    = "true"
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }
    # Two trainers of one number would fence one another off: one that is out of touch is stopped, not
    # doubled.
    disconnect {
      lost_after = "10m"
      replace    = false
      reconcile  = "keep_original"
    }

    service {
      name     = "trinity-trainer"
      tags     = ["host-${NOMAD_ALLOC_INDEX}"]
      provider = "nomad"
      port     = "grpc"
      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "3s"
        check_restart {
          limit = 6
          grace = "120s"
        }
      }
    }

    task "trainer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.trainer
        network_mode    = "host"
        volumes         = concat(["${var.security}/trainer:/etc/trinity/tls:ro"], var.volumes.trainer)
        shm_size        = local.sizes.trainer.shm
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, local.cache, {
        TRINITY_TRAINER_LISTEN       = "${NOMAD_IP_grpc}:${NOMAD_PORT_grpc}"
        TRINITY_TRAINER_LOG_FORMAT   = "json"
        TRINITY_TRAINER_NUM_HOSTS    = "${var.trainers}"
        TRINITY_TRAINER_HOST         = "${NOMAD_ALLOC_INDEX}"
        TRINITY_TRAINER_GANG_ADDRESS = "${NOMAD_IP_grpc}"
      }, var.environment.trainer)
      template {
        destination = "local/peers.env"
        env         = true
        data        = "TRINITY_TRAINER_SYNCHRONIZER=${local.synchronizer}\nTRINITY_TRAINER_BUFFER=${local.buffer}\nTRINITY_TRAINER_LEADER=${local.leader}"
      }
      template {
        destination = "secrets/variables.env"
        env         = true
        data        = local.variables
      }
      kill_timeout = "60s"
      resources {
        cpu    = local.sizes.trainer.cpu
        memory = local.sizes.trainer.memory
        dynamic "device" {
          for_each = var.trainer_gpus > 0 ? [var.trainer_gpus] : []
          labels   = ["nvidia/gpu"]
          content {
            count = device.value
          }
        }
      }
    }
  }

  group "explorer" {
    count = var.explorers

    network {
      port "grpc" {}
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }
    update {
      max_parallel     = 1
      min_healthy_time = "10s"
      auto_revert      = true
    }
    spread {
      attribute = "${node.unique.id}"
    }

    service {
      name     = "trinity-explorer"
      tags     = ["host-${NOMAD_ALLOC_INDEX}"]
      provider = "nomad"
      port     = "grpc"
      check {
        type     = "tcp"
        interval = "10s"
        timeout  = "3s"
        check_restart {
          limit = 6
          grace = "120s"
        }
      }
    }

    task "explorer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.explorer
        network_mode    = "host"
        volumes         = concat(["${var.security}/explorer:/etc/trinity/tls:ro"], var.volumes.explorer)
        shm_size        = local.sizes.explorer.shm
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, local.cache, {
        TRINITY_EXPLORER_LISTEN         = "${NOMAD_IP_grpc}:${NOMAD_PORT_grpc}"
        TRINITY_EXPLORER_LOG_FORMAT     = "json"
        TRINITY_EXPLORER_NATS_URL_FILE  = "${NOMAD_SECRETS_DIR}/nats-url"
        TRINITY_EXPLORER_NUM_HOSTS      = "${var.explorer_hosts}"
        TRINITY_EXPLORER_HOST           = var.explorer_hosts > 1 ? "${NOMAD_ALLOC_INDEX}" : "0"
        TRINITY_EXPLORER_ENGINE_ADDRESS = "${NOMAD_IP_grpc}"
      }, var.environment.explorer)
      template {
        destination = "secrets/nats-url"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/explorer/explorer\" }}{{ .explorer_nats_url }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      template {
        destination = "local/peers.env"
        env         = true
        data        = "TRINITY_EXPLORER_SYNCHRONIZER=${local.synchronizer}\nTRINITY_EXPLORER_BUFFER=${local.buffer}\nTRINITY_EXPLORER_LEADER=${local.engine_leader}"
      }
      template {
        destination = "secrets/variables.env"
        env         = true
        data        = local.variables
      }
      kill_timeout = "60s"
      resources {
        cpu    = local.sizes.explorer.cpu
        memory = local.sizes.explorer.memory
        dynamic "device" {
          for_each = var.explorer_gpus > 0 ? [var.explorer_gpus] : []
          labels   = ["nvidia/gpu"]
          content {
            count = device.value
          }
        }
      }
    }
  }
}
