// SPDX-License-Identifier: GPL-2.0-or-later
//
// Which of the emulator's hooks Strata uses: accesses to memory, and instructions executed. All others are
// nothing, so that the emulator does not call them.

#ifndef STRATA_INSTRUMENT_H
#define STRATA_INSTRUMENT_H

#if BX_INSTRUMENTATION

void strata_start(void);
void strata_end(void);
void strata_access(unsigned cpu, Bit64u lin, Bit64u phy, unsigned len, unsigned rw);
void strata_instruction(unsigned cpu);

// Looked at for every access and instruction: nothing is called unless there is a reader.
extern bool strata_watches;
extern bool strata_records;

#define BX_INSTR_INIT_ENV() strata_start()
#define BX_INSTR_EXIT_ENV() strata_end()
#define BX_INSTR_LIN_ACCESS(cpu_id, lin, phy, len, memtype, rw) \
  do { if (strata_watches) strata_access(cpu_id, lin, phy, len, rw); } while (0)
#define BX_INSTR_AFTER_EXECUTION(cpu_id, i) \
  do { if (strata_records) strata_instruction(cpu_id); } while (0)

#else

#define BX_INSTR_INIT_ENV()
#define BX_INSTR_EXIT_ENV()
#define BX_INSTR_LIN_ACCESS(cpu_id, lin, phy, len, memtype, rw)
#define BX_INSTR_AFTER_EXECUTION(cpu_id, i)

#endif

#define BX_INSTR_INITIALIZE(cpu_id)
#define BX_INSTR_EXIT(cpu_id)
#define BX_INSTR_RESET(cpu_id, type)
#define BX_INSTR_HLT(cpu_id)
#define BX_INSTR_MWAIT(cpu_id, addr, len, flags)
#define BX_INSTR_DEBUG_PROMPT()
#define BX_INSTR_DEBUG_CMD(cmd)
#define BX_INSTR_CNEAR_BRANCH_TAKEN(cpu_id, branch_eip, new_eip)
#define BX_INSTR_CNEAR_BRANCH_NOT_TAKEN(cpu_id, branch_eip)
#define BX_INSTR_UCNEAR_BRANCH(cpu_id, what, branch_eip, new_eip)
#define BX_INSTR_FAR_BRANCH(cpu_id, what, prev_cs, prev_eip, new_cs, new_eip)
#define BX_INSTR_OPCODE(cpu_id, i, opcode, len, is32, is64)
#define BX_INSTR_EXCEPTION(cpu_id, vector, error_code)
#define BX_INSTR_INTERRUPT(cpu_id, vector)
#define BX_INSTR_HWINTERRUPT(cpu_id, vector, cs, eip)
#define BX_INSTR_CLFLUSH(cpu_id, laddr, paddr)
#define BX_INSTR_CACHE_CNTRL(cpu_id, what)
#define BX_INSTR_TLB_CNTRL(cpu_id, what, new_cr3)
#define BX_INSTR_PREFETCH_HINT(cpu_id, what, seg, offset)
#define BX_INSTR_BEFORE_EXECUTION(cpu_id, i)
#define BX_INSTR_REPEAT_ITERATION(cpu_id, i)
#define BX_INSTR_PHY_ACCESS(cpu_id, phy, len, memtype, rw)
#define BX_INSTR_INP(addr, len)
#define BX_INSTR_INP2(addr, len, val)
#define BX_INSTR_OUTP(addr, len, val)
#define BX_INSTR_WRMSR(cpu_id, addr, value)
#define BX_INSTR_VMEXIT(cpu_id, reason, qualification)

#endif
