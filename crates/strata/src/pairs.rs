//! Which stacks and policies go together.

use crate::args::RunArgs;
use crate::defaults::DEFAULT_STACK;
use crate::failure::{Failure, unknown};
use strata_engine::{Catalogue, Paging, StackKind, default_policies, works_across_layers};

/// Every pair of stack and policy that goes together, stack by stack.
///
/// # Errors
/// When one is named that does not exist, or goes with nothing.
pub fn cross_product(
    args: &RunArgs,
    catalogue: &Catalogue,
    remarks: &mut Vec<String>,
) -> Result<Vec<(StackKind, String)>, Failure> {
    let stacks = args.stack.clone().unwrap_or_else(|| vec![DEFAULT_STACK]);
    let named = args.policy.clone();
    let policies = named.clone().unwrap_or_else(default_policies);
    for (index, stack) in stacks.iter().enumerate() {
        if stacks[..index].contains(stack) {
            return Err(Failure::usage(format!("--stack names {stack} twice; name it once")));
        }
    }
    for (index, policy) in policies.iter().enumerate() {
        if policies[..index].contains(policy) {
            return Err(Failure::usage(format!("--policy names {policy} twice; name it once")));
        }
        if policy.is_empty() {
            return Err(Failure::usage("--policy has a name that is empty; leave out the comma"));
        }
        let Some(info) = catalogue.policy(policy) else {
            let names = catalogue.policies.iter().map(|policy| &*policy.name);
            let message = unknown("policy", policy, names, "'strata list policies' shows all");
            return Err(Failure::usage(message));
        };
        if named.is_some() && !stacks.iter().any(|stack| info.stacks.contains(stack)) {
            let fits: Vec<_> = info.stacks.iter().map(|stack| stack.name()).collect();
            return Err(Failure::usage(format!(
                "policy {policy} cannot run on --stack {}; add --stack {}",
                list(&stacks),
                fits.join(",")
            )));
        }
    }
    let without_second_stages = args.paging.is_some_and(Paging::has_shadows);
    if let Some(paging) = args.paging.filter(|paging| paging.has_shadows()) {
        shadow_paging_fits(paging, &stacks, named.as_deref().unwrap_or_default())?;
    }
    let mut pairs = Vec::new();
    for &stack in &stacks {
        for policy in &policies {
            if without_second_stages && works_across_layers(policy) {
                remarks.push(format!("policy {policy} needs second stages: left out"));
                continue;
            }
            let info = catalogue.policy(policy).expect("checked above");
            if info.stacks.contains(&stack) {
                pairs.push((stack, policy.clone()));
            } else {
                remarks
                    .push(format!("policy {policy} does not exist on a {stack} stack: left out"));
            }
        }
    }
    Ok(pairs)
}

/// Whether stacks and policies can have shadow paging.
///
/// # Errors
/// With the first that cannot.
fn shadow_paging_fits(
    paging: Paging,
    stacks: &[StackKind],
    policies: &[String],
) -> Result<(), Failure> {
    let name = paging.name();
    if let Some(deep) = stacks.iter().find(|stack| stack.layers() > StackKind::Nested.layers()) {
        let (what, these) = match paging {
            Paging::ShadowOnShadow => ("nested VMs", "nested"),
            _ => ("VMs and nested VMs", "vm or nested"),
        };
        return Err(Failure::usage(format!(
            "--paging {name} is for {what}, and a {deep} stack has VMs in these: take {these}, or leave --paging out"
        )));
    }
    if paging == Paging::ShadowOnShadow && !stacks.contains(&StackKind::Nested) {
        return Err(Failure::usage(
            "--paging shadow-on-shadow is for nested VMs, in which L1 keeps a shadow for L0 to shadow: add nested to \
             --stack, or take --paging shadow for a VM",
        ));
    }
    match policies.iter().find(|policy| works_across_layers(policy)) {
        Some(policy) => Err(Failure::usage(format!(
            "policy {policy} works on second stages, of which a VM has none with --paging {name}: take base or \
             thp, or leave --paging out"
        ))),
        None => Ok(()),
    }
}

fn list(stacks: &[StackKind]) -> String {
    stacks.iter().map(|stack| stack.name()).collect::<Vec<_>>().join(",")
}
