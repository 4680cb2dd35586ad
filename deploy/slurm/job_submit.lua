-- Keeps users off what belongs to the Kubernetes side of a GPU: shards (and mps, the other GRES that shares a GPU's
-- device), and external jobs, with which anybody could hold GPUs without running anything.
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
  return verdict(job, modify_uid)
end

return slurm.SUCCESS
