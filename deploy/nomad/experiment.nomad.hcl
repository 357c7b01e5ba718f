# One experiment on services of a cluster: started, followed, and ended with it.
#   nomad job run -var-file=experiment.vars.json nomad/experiment.nomad.hcl
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
  description = "Not used here."
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
  # Where a service answers, for a file of variables.
  synchronizer = "{{ range nomadService 1 (env \"NOMAD_ALLOC_ID\") \"trinity-synchronizer\" }}{{ .Address }}:{{ .Port }}{{ end }}"
  buffer       = "{{ range nomadService 1 (env \"NOMAD_ALLOC_ID\") \"trinity-buffer\" }}{{ .Address }}:{{ .Port }}{{ end }}"
}

job "trinity-experiment" {
  type = "batch"

  group "experiment" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    # A lost node's is started again elsewhere; a failed experiment stays failed.
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "experiment" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image = var.images.synchronizer
        # 3: no service has answered yet.
        entrypoint      = ["sh", "-c", "while trinity deploy submit \"$@\"; code=$?; [ $code -eq 3 ]; do sleep 5; done; exit $code", "submit"]
        args            = ["--plan=/local/plan.json", "--synchronizer=${SYNCHRONIZER}", "--buffer=${BUFFER}"]
        volumes         = ["${var.security}/operator:/etc/trinity/tls:ro"]
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      template {
        destination = "local/peers.env"
        env         = true
        data        = "SYNCHRONIZER=${local.synchronizer}\nBUFFER=${local.buffer}"
      }
      env {
        TRINITY_SECURITY_DIR = "/etc/trinity/tls"
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
