# One node: everything in one group, which shares a network namespace; the services, the database and
# the broker listen on its loopback alone.
#   trinity deploy secrets secrets --postgres 127.0.0.1:5432 --nats 127.0.0.1:4222
#   for file in secrets/nomad/one-node/*.json; do nomad var put @$file; done
#   nomad job run -var-file=experiment.vars.json nomad/one-node.nomad.hcl
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

variable "studio_tls" {
  type        = string
  description = "Folder of the node with Studio's certificate and token keys; empty: no Studio."
  default     = ""
}

variable "nats_config" {
  type    = string
  default = "../nats/nats.conf"
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
  # Of every service: where it may write. Compiled kernels cannot be loaded from docker's tmpfs.
  own = {
    HOME                = "/local"
    TMPDIR              = "/local"
    PYTHONPYCACHEPREFIX = "/local/pycache"
  }
  # Of those that fetch models or data: kept while the task stays on a node.
  cache = { HF_HOME = "/alloc/data/huggingface" }
}

job "trinity" {
  type = "service"

  group "node" {
    count = 1

    network {
      mode = "bridge"
      # Of Studio alone: it is the only one that listens beyond the loopback of the group.
      dynamic "port" {
        for_each = var.studio_tls != "" ? [8080] : []
        labels   = ["studio"]
        content {
          static = port.value
          to     = 8080
        }
      }
    }

    # The client names the folders: host_volume "trinity-postgres" and "trinity-nats".
    volume "postgres" {
      type   = "host"
      source = "trinity-postgres"
    }

    volume "nats" {
      type   = "host"
      source = "trinity-nats"
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    task "postgres" {
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      driver = "docker"
      config {
        image        = "postgres:18"
        args         = ["-c", "listen_addresses=127.0.0.1", "-c", "max_wal_size=2GB", "-c", "jit=off"]
        shm_size     = 268435456
        security_opt = ["no-new-privileges"]
      }
      volume_mount {
        volume      = "postgres"
        destination = "/var/lib/postgresql"
      }
      env {
        POSTGRES_USER          = "admin"
        POSTGRES_PASSWORD_FILE = "/secrets/password"
      }
      template {
        destination = "secrets/password"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/postgres\" }}{{ .admin_password }}{{ end }}"
        perms       = "0400"
        uid         = 0
        gid         = 0
      }
      kill_signal  = "SIGINT"
      kill_timeout = "30s"
      resources {
        cpu        = 500
        memory     = 1024
        memory_max = 4096
      }
    }

    task "nats" {
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      driver = "docker"
      config {
        image        = "nats:2.15-alpine"
        args         = ["-a", "127.0.0.1", "-c", "/secrets/nats.conf"]
        security_opt = ["no-new-privileges"]
      }
      volume_mount {
        volume      = "nats"
        destination = "/data"
      }
      template {
        destination = "secrets/nats.conf"
        data        = file(var.nats_config)
        perms       = "0400"
      }
      template {
        destination = "secrets/users/users.conf"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/nats\" }}{{ .nats_users }}{{ end }}"
        perms       = "0400"
        uid         = 0
        gid         = 0
      }
      resources {
        cpu        = 250
        memory     = 512
        memory_max = 2048
      }
    }

    task "accounts" {
      lifecycle {
        hook = "prestart"
      }
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.synchronizer
        entrypoint      = ["python", "-P", "-m", "trinity.run.deploy.accounts"]
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env {
        TRINITY_ACCOUNTS_ADMIN_DSN_FILE        = "${NOMAD_SECRETS_DIR}/admin-dsn"
        TRINITY_ACCOUNTS_BUFFER_DSN_FILE       = "${NOMAD_SECRETS_DIR}/buffer-dsn"
        TRINITY_ACCOUNTS_SYNCHRONIZER_DSN_FILE = "${NOMAD_SECRETS_DIR}/synchronizer-dsn"
      }
      template {
        destination = "secrets/admin-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/accounts\" }}{{ .admin_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      template {
        destination = "secrets/buffer-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/accounts\" }}{{ .buffer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      template {
        destination = "secrets/synchronizer-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/accounts\" }}{{ .synchronizer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      resources {
        cpu    = 200
        memory = 512
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
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/migrate-synchronizer\" }}{{ .synchronizer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      resources {
        cpu    = 200
        memory = 512
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
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/migrate-buffer\" }}{{ .buffer_postgres_dsn }}{{ end }}"
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
        volumes         = var.volumes.synchronizer
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, {
        TRINITY_SYNCHRONIZER_LISTEN            = "127.0.0.1:50051"
        TRINITY_SYNCHRONIZER_LOG_FORMAT        = "json"
        TRINITY_SYNCHRONIZER_POSTGRES_DSN_FILE = "${NOMAD_SECRETS_DIR}/postgres-dsn"
      }, var.environment.synchronizer)
      template {
        destination = "secrets/postgres-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/synchronizer\" }}{{ .synchronizer_postgres_dsn }}{{ end }}"
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

    task "buffer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.buffer
        volumes         = var.volumes.buffer
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, local.cache, {
        TRINITY_BUFFER_LISTEN            = "127.0.0.1:50052"
        TRINITY_BUFFER_LOG_FORMAT        = "json"
        TRINITY_BUFFER_POSTGRES_DSN_FILE = "${NOMAD_SECRETS_DIR}/postgres-dsn"
        TRINITY_BUFFER_NATS_URL_FILE     = "${NOMAD_SECRETS_DIR}/nats-url"
        TRINITY_BUFFER_SYNCHRONIZER      = "127.0.0.1:50051"
        TRINITY_BUFFER_TASKSET_ROOTS     = "/data"
      }, var.environment.buffer)
      template {
        destination = "secrets/postgres-dsn"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/buffer\" }}{{ .buffer_postgres_dsn }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
      }
      template {
        destination = "secrets/nats-url"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/buffer\" }}{{ .buffer_nats_url }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
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

    task "trainer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.trainer
        volumes         = var.volumes.trainer
        shm_size        = local.sizes.trainer.shm
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, local.cache, {
        TRINITY_TRAINER_LISTEN       = "127.0.0.1:50053"
        TRINITY_TRAINER_LOG_FORMAT   = "json"
        TRINITY_TRAINER_SYNCHRONIZER = "127.0.0.1:50051"
        TRINITY_TRAINER_BUFFER       = "127.0.0.1:50052"
      }, var.environment.trainer)
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

    task "explorer" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.explorer
        volumes         = var.volumes.explorer
        shm_size        = local.sizes.explorer.shm
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env = merge(local.own, local.cache, {
        TRINITY_EXPLORER_LISTEN        = "127.0.0.1:50054"
        TRINITY_EXPLORER_LOG_FORMAT    = "json"
        TRINITY_EXPLORER_NATS_URL_FILE = "${NOMAD_SECRETS_DIR}/nats-url"
        TRINITY_EXPLORER_SYNCHRONIZER  = "127.0.0.1:50051"
        TRINITY_EXPLORER_BUFFER        = "127.0.0.1:50052"
      }, var.environment.explorer)
      template {
        destination = "secrets/nats-url"
        data        = "{{ with nomadVar \"nomad/jobs/trinity/node/explorer\" }}{{ .explorer_nats_url }}{{ end }}"
        perms       = "0400"
        uid         = 10001
        gid         = 10001
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

    dynamic "task" {
      for_each = var.studio_tls != "" ? [var.studio_tls] : []
      labels   = ["studio"]
      content {
        driver = "docker"
        user   = "10001:10001"
        config {
          image           = var.images.studio
          args            = ["--host=0.0.0.0", "--port=8080", "--tls-folder=/etc/trinity/studio", "--synchronizer=127.0.0.1:50051", "--buffer=127.0.0.1:50052"]
          volumes         = ["${task.value}:/etc/trinity/studio:ro"]
          init            = true
          readonly_rootfs = true
          cap_drop        = ["all"]
          security_opt    = ["no-new-privileges"]
        }
        env = local.own
        resources {
          cpu        = 200
          memory     = 512
          memory_max = 1024
        }
      }
    }

    task "experiment" {
      lifecycle {
        hook = "poststart"
      }
      driver = "docker"
      user   = "10001:10001"
      config {
        image = var.images.synchronizer
        # 1 and 2 are the end of it, which the group's `restart` would take for a reason to start it again.
        entrypoint      = ["sh", "-c", "trinity deploy submit \"$@\" || [ $? -le 2 ]", "submit"]
        args            = ["--plan=/local/plan.json", "--synchronizer=127.0.0.1:50051", "--buffer=127.0.0.1:50052"]
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      # A plan may hold chat templates with braces: the template's own delimiters are words.
      template {
        destination     = "local/plan.json"
        data            = file(var.plan_file)
        left_delimiter  = "NO-TEMPLATE-LEFT"
        right_delimiter = "NO-TEMPLATE-RIGHT"
      }
      resources {
        cpu    = 100
        memory = 512
      }
    }
  }
}
