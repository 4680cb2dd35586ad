-- Keeps users off what belongs to the Kubernetes side of a GPU: shards (and mps, the other GRES that shares a GPU's
-- device); external jobs, with which anybody could hold GPUs without running anything; and the holds themselves: the
-- external job that pays for a pod is its user's own, and what it asks for is what the pod has.
--
-- To install: beside slurm.conf on the controller, `JobSubmitPlugins=lua` in slurm.conf, restart slurmctld once. Later
-- changes of this file are taken up by themselves.
--
-- Numeric ids, because slurmctld waits for this script while it holds its locks, and a lookup of a name may hang.
-- root, SlurmUser (64030 in Debian) and, if it has an id of its own, the account of dynamig's bridge:
local MAY_HOLD = { [0] = true, [64030] = true }

local SHARING = { "shard", "mps" }
local REQUESTS = { "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }
local EXTERNAL_JOB = 2 ^ 24 -- bit of job_desc.bitflags; slurm.h of 26.05, seen set by `sbatch --external`

-- In the admin_comment of a hold. Slurm lets nobody but its administrators write that; a job's record has no bitflags
-- here that would tell an external job (26.05.5).
local OWNER = '"owner":"dynamig"'

-- Every field of an update that slurmctld heeds (_update_job in job_mgr.c, 26.05) and Lua can read, but for the three
-- that the user of a hold may set: priority (hold and release; Slurm lets her lower it only), nice and time_limit.
local FIXED = {
  "account", "array_inx", "burst_buffer", "clusters", "comment", "contiguous", "core_spec", "cores_per_socket",
  "cpus_per_task", "cpus_per_tres", "delay_boot", "dependency", "exc_nodes", "extra", "features", "licenses",
  "mail_type", "mail_user", "max_cpus", "max_nodes", "mcs_label", "mem_per_tres", "min_cpus", "min_nodes", "name",
  "network", "ntasks_per_node", "ntasks_per_socket", "ntasks_per_tres", "num_tasks", "partition", "pn_min_cpus",
  "pn_min_memory", "pn_min_tmp_disk", "prefer", "qos", "reboot", "req_nodes", "req_switch", "requeue", "reservation",
  "shared", "site_factor", "sockets_per_node", "std_err", "std_in", "std_out", "thread_spec", "threads_per_core",
  "time_min", "tres_bind", "tres_freq", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "wckey",
  "work_dir",
}
local TIMES = { "begin_time", "end_time" }
local UNSET = { [slurm.NO_VAL16] = true, [slurm.NO_VAL] = true, [slurm.NO_VAL64] = true }

local function asks_for_sharing(job)
  for _, field in ipairs(REQUESTS) do
    local asked = string.lower(job[field] or "")
    for _, name in ipairs(SHARING) do
      if string.find(asked, name, 1, true) then
        return true
      end
    end
  end
  return false
end

local function is_external(job)
  return math.floor((job.bitflags or 0) / EXTERNAL_JOB) % 2 == 1
end

local function is_hold(record)
  return string.find(record.admin_comment or "", OWNER, 1, true) ~= nil
end

-- The first field of an update that the user of a hold may not change.
local function fixed_field(job, record)
  for _, field in ipairs(FIXED) do
    if job[field] ~= nil and not UNSET[job[field]] then
      return field
    end
  end
  for _, field in ipairs(TIMES) do
    if job[field] ~= 0 then
      return field
    end
  end
  if not UNSET[job.time_limit] and job.time_limit > record.time_limit then
    return "time_limit"
  end
  return nil
end

local function verdict(job, uid)
  if MAY_HOLD[uid] then
    return slurm.SUCCESS
  end
  if asks_for_sharing(job) then
    slurm.log_user("shards of GPUs are for Kubernetes pods here; ask for --gres=gpu:N")
    return slurm.ESLURM_INVALID_GRES
  end
  if is_external(job) then
    slurm.log_user("external jobs are for Kubernetes pods here")
    return slurm.ESLURM_ACCESS_DENIED
  end
  return slurm.SUCCESS
end

function slurm_job_submit(job, partitions, submit_uid)
  return verdict(job, submit_uid)
end

function slurm_job_modify(job, record, partitions, modify_uid)
  local field = not MAY_HOLD[modify_uid] and is_hold(record) and fixed_field(job, record)
  if field then
    slurm.log_user(
      "%s stays as it is: this job pays for a Kubernetes pod and asks for what the pod has. You may hold and release it, "
        .. "raise Nice and shorten TimeLimit; scancel ends the pod. For anything else make a new pod",
      field
    )
    return slurm.ESLURM_ACCESS_DENIED
  end
  return verdict(job, modify_uid)
end

return slurm.SUCCESS
