# Studio beside the services of a cluster, for those who have a token with the scope `read`. The node has
# the folder `studio` that `trinity certs FOLDER --host studio=ADDRESS` makes, beside those of services.
#   nomad job run -var-file=experiment.vars.json nomad/studio.nomad.hcl
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

job "trinity-studio" {
  type = "service"

  group "studio" {
    count = 1 # cookies are kept by the process that gave them

    network {
      port "https" {
        static = 8080
      }
    }

    restart {
      attempts = 10
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    service {
      name     = "trinity-studio"
      provider = "nomad"
      port     = "https"
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

    task "studio" {
      driver = "docker"
      user   = "10001:10001"
      config {
        image           = var.images.studio
        network_mode    = "host"
        args            = ["--host=${NOMAD_IP_https}", "--port=${NOMAD_PORT_https}", "--synchronizer=${SYNCHRONIZER}", "--buffer=${BUFFER}"]
        volumes         = ["${var.security}/studio:/etc/trinity/tls:ro"]
        init            = true
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
      }
      env {
        TRINITY_SECURITY_DIR = "/etc/trinity/tls"
        HOME                 = "/local"
        TMPDIR               = "/local"
        PYTHONPYCACHEPREFIX  = "/local/pycache"
      }
      template {
        destination = "local/peers.env"
        env         = true
        data        = "SYNCHRONIZER=${local.synchronizer}\nBUFFER=${local.buffer}"
      }
      resources {
        cpu        = 200
        memory     = 512
        memory_max = 1024
      }
    }
  }
}
