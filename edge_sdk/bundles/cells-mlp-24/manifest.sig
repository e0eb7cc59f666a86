yE(®è3ŸvÇúÖáIfBÈÕxÍÜXikŠ_×~¸ebD[$¶koÃøìæÍAA»]Ö
pD2-‰hH ŸŠ'£€þk¬ÄÂ6¯